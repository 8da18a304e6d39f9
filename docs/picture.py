#!/usr/bin/env python3
"""Makes docs/run.svg, a picture of the end of a run in a terminal. Needs `rich` (pip) and a model.

    cargo build --release && python3 docs/picture.py smollm2-135m-instruct
"""

import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH, LINES = 96, 34
SCENARIO = "scenarios/prisoners-dilemma.yaml"


def played(model: str) -> str:
    """The output in a terminal of WIDTH columns."""
    program = os.environ.get("GREENROOM", str(ROOT / "target/release/greenroom"))
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "run", SCENARIO, "--model", model, "--max-tokens", "48", "--out", f"{folder}/run"]
        ours, theirs = pty.openpty()
        size = f"stty rows 50 cols {WIDTH} <&1; exec \"$@\""
        env = dict(os.environ, TERM="xterm-256color", XDG_CACHE_HOME=f"{folder}/cache")
        env["HF_HOME"] = os.environ.get("HF_HOME", str(Path.home() / ".cache/huggingface"))
        run = subprocess.Popen(["sh", "-c", size, "sh", *command], cwd=ROOT, env=env, stdout=theirs, stderr=subprocess.DEVNULL)
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # on Linux: the other end is closed
            pass
        if run.wait() not in (0, 1):
            sys.exit(f"{' '.join(command)} failed")
        return text.decode().replace("\r\n", "\n").replace(f"{folder}/run", "runs/prisoners-dilemma-1")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model = sys.argv[1]
    name = Path(model).stem
    lines = Text.from_ansi(played(model).rstrip("\n")).split("\n")
    first, last = lines[:1], lines[-LINES:]
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), color_system="truecolor", force_terminal=True)
    console.print(Text(f"$ greenroom run {SCENARIO} --model {name}"))
    for line in [*first, Text("…"), *last]:
        console.print(line, highlight=False)
    console.save_svg(str(ROOT / "docs/run.svg"), title=f"greenroom · {name}")


main()
