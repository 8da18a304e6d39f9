"""The page about the adapters is true: its programs run, and its excerpts are those of the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from .programs import EXAMPLES, PYTHON, SCENARIOS

PAGE = (PYTHON.parent / "docs" / "adapters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python ?(\S*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", [text for words, text in BLOCKS if not words])
def test_programs_run(block: str, tmp_path: Path) -> None:
    package = "inspect_ai" if "inspect" in block else "concordia"
    pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / "scenarios").symlink_to(SCENARIOS)
    exec(compile(block, "adapters.md", "exec"), {})


@pytest.mark.parametrize(("words", "block"), [(words, text) for words, text in BLOCKS if words])
def test_excerpts_are_of_the_examples(words: str, block: str) -> None:
    assert block in (EXAMPLES / words.removeprefix("excerpt=")).read_text(encoding="utf-8")


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    programs = [file.name for file in EXAMPLES.glob("*.py")]
    assert len(programs) >= 5 and all(f"`{name}`" in listed for name in programs)
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    assert all(name in tests for name in programs)
