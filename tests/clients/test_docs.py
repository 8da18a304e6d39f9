"""What docs/server.md says: its commands, run by a shell as the page shows them, and how the server ends."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from server import MODEL, Server

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_commands_of_the_page(start) -> None:
    server: Server = start()
    blocks = [block for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S) if "curl" in block]
    assert len(blocks) >= 2, "the page shows requests"
    for block in blocks:
        script = block.replace("http://127.0.0.1:8080", server.origin).replace('"understudy"', f'"{MODEL}"')
        script = script.replace("curl ", "curl --silent --show-error --fail-with-body ")
        ran = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
        assert ran.stdout.count("{") > 0, ran.stdout


def test_a_signal_right_after_the_line_ends_the_server_well(start) -> None:
    # `start` returns as soon as the line is read.
    assert [start().end() for _ in range(12)] == [0] * 12
