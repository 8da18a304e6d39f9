"""The pages about the package are true: their blocks of Python run, one after another, and `# →` is what an
expression gives. A block ```` ```python norun ```` is only compiled."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SCENARIOS

# So many runs, and so few in a test.
MANY = ("seeds=50", "seeds=2")
AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def blocks(page: Path) -> list[tuple[int, str, bool]]:
    """The blocks of Python: their first lines, texts, and whether they run."""
    found: list[tuple[int, str, bool]] = []
    fence = re.compile(r"^```python( norun)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    text = page.read_text(encoding="utf-8")
    for block in fence.finditer(text):
        found.append((text.count("\n", 0, block.start(2)), block[2], block[1] is None))
    return found


def compiled(nodes: list[ast.stmt], place: str) -> Any:
    return compile(ast.Module(nodes, []), place, "exec", AWAITS, dont_inherit=True)


def follow(page: Path) -> int:
    """Runs a page; returns how many values it has compared."""
    names: dict[str, Any] = {"__name__": "__main__"}
    loop, compared = asyncio.new_event_loop(), 0

    def ran(code: Any) -> Any:
        result = eval(code, names)
        return loop.run_until_complete(result) if inspect.iscoroutine(result) else result

    for at, text, runs in blocks(page):
        text = "\n" * at + text.replace(*MANY)
        lines = text.splitlines()
        for node in ast.parse(text, page.name).body:
            place = f"{page.name}:{node.lineno}"
            if not runs:
                compiled([node], place)
                continue
            expected = re.search(r"# → (.*)$", lines[(node.end_lineno or 1) - 1])
            if expected is None or not isinstance(node, ast.Expr):
                assert expected is None, f"{place}: only an expression gives something"
                ran(compiled([node], place))
                continue
            given = ran(compile(ast.Expression(node.value), place, "eval", AWAITS, dont_inherit=True))
            assert repr(given) == expected[1], f"{place} gives {given!r}"
            compared += 1
    loop.close()
    return compared


@pytest.mark.parametrize(("name", "least"), [("docs/python.md", 30), ("python/README.md", 1)])
def test_the_blocks_of_a_page_run(name: str, least: int, tmp_path: Path) -> None:
    for library in ("pandas", "polars", "duckdb"):
        pytest.importorskip(library)
    shutil.copy(SCENARIOS / "prisoners-dilemma.yaml", tmp_path)
    assert follow(ROOT / name) >= least


def test_a_wrong_value_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n1 + 1  # → 3\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="page.md:2 gives 2"):
        follow(page)
