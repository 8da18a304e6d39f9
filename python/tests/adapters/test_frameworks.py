"""Examples of frameworks whose agents' memories Greenroom's server keeps, named by agent."""

from __future__ import annotations

import re

import pytest
from .programs import EXAMPLES, Ran


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
