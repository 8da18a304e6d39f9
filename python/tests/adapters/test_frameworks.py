"""Examples of frameworks whose agents' memories Greenroom's server keeps, named by agent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from .programs import EXAMPLES, Ran


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server."""
    command = [sys.executable, "-m", "greenroom", "serve", "--listen", "127.0.0.1:0", "--cache-dir", str(tmp_path / "server")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2]
        server.terminate()


@pytest.mark.parametrize(
    ("package", "program"), [("langgraph", "langgraph_talk.py"), ("agents", "openai_agents_talk.py")]
)
def test_agents_continue_their_memories(url: str, ran: Ran, package: str, program: str) -> None:
    pytest.importorskip(package, reason=f"{program} needs a package that is not installed")
    if package == "langgraph":
        pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    out = ran("python", EXAMPLES / program, GREENROOM_URL=url)
    found = re.findall(r"^(mira|tom) \(reused (\d+) of (\d+) tokens\)", out, re.MULTILINE)
    assert [name for name, *_ in found] == ["mira", "tom"] * 3, out
    for name in ("mira", "tom"):
        first, second, third = [(int(reused), int(read)) for who, reused, read in found if who == name]
        # All that was read before is reused, and what was said then, too.
        assert first[0] == 0 and second[0] >= first[1] - 1 and third[0] >= second[1] - 1, out
