"""The notebooks run from top to bottom on the bundled model, and show what they are to show."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
# What the output of a cell with this text has: a part of its type, and a part of its content.
SHOWN = {
    "first-run": {
        "run = gr.run(": ("text/html", "14 turns"),
        "run.options": ("text/html", "<table"),
        "run": ("text/html", "<iframe"),
        "run.explain(": ("text/html", "sheets/1/danny"),
        "run.diff(fork)": ("text/html", "I told the Warden everything"),
        "import pandas": ("text/html", "Marco confesses"),
    },
    "study": {
        "ended = []": ("text/plain", "100 runs in"),
        "pd.DataFrame(study.differences)": ("text/html", "frame=die"),
        "import matplotlib": ("image/png", ""),
        "print(study.replay()": ("text/html", "<iframe"),
    },
    "agents": {
        "ada = engine.agent(": ("text/html", "<p>"),
        "ada": ("text/html", "Who are you?"),
        "await ada.choose(": ("text/html", "<meter"),
        "engine.close()": ("text/plain", "memory from disk"),
        "import asyncio": ("text/plain", "40 choices"),
        "from dataclasses": ("text/plain", "Watch(place="),
        "@gr.tool": ("text/plain", "'failed': False"),
        "@gr.player": ("text/plain", "Ben: That is too much. I offer 1 coins."),
        "run.replay().passed": ("text/plain", "True"),
    },
}


def outputs(cell: Any) -> list[tuple[str, str]]:
    """What a cell shows: types and contents."""
    shown: list[tuple[str, str]] = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            shown.append(("text/plain", output["text"]))
        else:
            shown += output.get("data", {}).items()
    return shown


def executed(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A notebook as its kernel leaves it, with what this Python finds on its path."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    kernel = folder / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "tests", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "python"), *filter(None, sys.path)]))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    notebook = nbformat.read(path, 4)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.mark.parametrize("name", list(SHOWN))
def test_a_notebook_runs_and_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "matplotlib"):
        pytest.importorskip(library)
    notebook = executed(NOTEBOOKS / f"{name}.ipynb", tmp_path, monkeypatch)
    for text, (kind, content) in SHOWN[name].items():
        found = [cell for cell in notebook.cells if cell.source == text or (" " in text or len(text) > 6) and cell.source.startswith(text)]
        assert len(found) == 1, f"{name} has {len(found)} cells that begin with {text!r}"
        shown = outputs(found[0])
        assert any(one == kind and content in data for one, data in shown), f"{name}, {text!r}: {shown}"
    warned = [output["text"] for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"]
    assert not warned


def test_notebooks_are_stored_without_outputs() -> None:
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [path.stem for path in paths] == sorted(SHOWN)
    for path in paths:
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells), path
        assert any('MODEL = "understudy"' in "".join(cell["source"]) for cell in cells[:1]), path
