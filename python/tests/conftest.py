"""What the tests share. They need the module: a wheel, or `python develop.py` after `cargo build -p greenroom-python`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import greenroom as gr

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and memories belong to the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[gr.Engine]:
    """The bundled model, with memories of its own."""
    with gr.Engine("understudy", cache_dir=tmp_path / "memories", threads=2) as engine:
        yield engine


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the bundled model."""
    command = [sys.executable, "-m", "greenroom", "serve", "--listen", "127.0.0.1:0", "--cache-dir", str(tmp_path / "server")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2]
        server.terminate()


@pytest.fixture
def dilemma() -> Path:
    """A scenario that is shipped."""
    return SCENARIOS / "prisoners-dilemma.yaml"


TALK = {
    "id": "talk",
    "agents": {"ann": {"system_prompt": "You are Ann."}, "ben": {"system_prompt": "You are Ben."}},
    "phases": [
        {"name": "hall", "agents": ["ann", "ben"], "order": "round_robin", "rounds": 2, "prompt": "They meet."},
        {"name": "vote", "agents": ["ann", "ben"], "answer": {"one_of": ["yes", "no"]}, "prompt": "Is it cold?"},
    ],
    "outcome": {"yes": "vote.votes.yes"},
}


@pytest.fixture
def talk() -> gr.Scenario:
    """A small scenario."""
    return gr.Scenario.load(TALK)
