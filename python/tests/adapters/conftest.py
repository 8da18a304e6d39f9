"""What the adapters' tests share. Each test needs the package that it is about:

    pip install -r python/tests/requirements.txt
    pytest python/tests/adapters
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from .programs import PYTHON, Ran

@pytest.fixture(scope="session", autouse=True)
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Other packages find the adapters by entry points. A package that is not installed, but on the path, has them
    from its pyproject.toml."""
    try:
        distribution("greenroom")
        yield
        return
    except PackageNotFoundError:
        pass
    folder = tmp_path_factory.mktemp("installed")
    about = folder / "greenroom-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greenroom\nVersion: 0\n")
    lines, inside = [], False
    for line in (PYTHON / "pyproject.toml").read_text().splitlines():
        if line.startswith("["):
            inside = line.startswith("[project.entry-points.")
            lines += [f"[{line.split('.')[-1]}"] if inside else []
        elif inside:
            lines.append(line.replace('"', ""))
    (about / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(folder))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PYTHON), str(folder), *([before] if before else [])])
    yield
    sys.path.remove(str(folder))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    """Runs a program of this environment, and returns what it prints."""

    def run(*words: str | Path, cwd: Path = tmp_path, **environment: str) -> str:
        name, *arguments = map(str, words)
        program = Path(sys.executable).parent / name
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=120, cwd=cwd, env=os.environ | environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
