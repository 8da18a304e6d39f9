"""A run in a notebook while it is played: how far it is, and what was said."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenroom.play import Event
    from greenroom.results import Run

__all__ = ["Count", "Live", "in_notebook"]

# Seconds between two pictures.
_PACE = 0.1
# Lines that are shown while it is played.
_SHOWN = 12


def in_notebook() -> bool:
    """True in a kernel of Jupyter."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


class Live:
    """Shows a run's events under the cell that plays it: the latest turns while it goes on, all of them at its end."""

    def __init__(self) -> None:
        from IPython import display

        self._ipython: Any = display  # which has no types
        self._handle = self._ipython.display(self._ipython.HTML("<progress></progress>"), display_id=True)
        self._names: dict[str, str] = {}
        self._phases: dict[str, str] = {}
        self._title, self._total, self._ended, self._closed = "", 0, 0, False
        # Phase, agent and text of each turn that has ended, and of those that are being said.
        self._lines: list[tuple[str, str, str]] = []
        self._speaking: dict[str, tuple[str, str, str]] = {}
        self._shown = 0.0

    def __call__(self, event: Event) -> None:
        """Takes an event; the picture changes at most ten times a second."""
        data = event.data
        if event.name == "plan":
            self._names = {one["key"]: one["name"] for one in data["agents"]}
            self._phases = {one["name"]: one["title"] or one["name"] for one in data["phases"]}
            self._title = str(data["title"] or data["scenario"])
            self._total = sum(len(phase["turns"]) for phase in data["phases"])
        elif event.name == "text":
            path = data["path"]
            before = self._speaking.get(path, ("", "", ""))[2]
            self._speaking[path] = (path.split("/")[0], data["agent"], before + data["text"])
        elif event.name == "turn":
            self._ended += 1
            self._speaking.pop(data["path"], None)
            self._lines.append((data["phase"], data["agent"], data["text"]))
        elif event.name == "skipped":
            self._ended += 1
        if time.monotonic() - self._shown > _PACE:
            self._draw()

    def close(self) -> None:
        """The last picture."""
        self._speaking.clear()
        self._closed = True
        self._draw()

    def _draw(self) -> None:
        self._shown = time.monotonic()
        lines = [*self._lines, *self._speaking.values()]
        shown: list[str] = []
        phase = ""
        for at, agent, text in lines if self._closed else lines[-_SHOWN:]:
            if at != phase:
                shown.append(f"<div style='opacity:.7;margin:.7em 0 .2em'>{escape(self._phases.get(at, at))}</div>")
                phase = at
            shown.append(f"<div style='margin:.2em 0'><b>{escape(self._names.get(agent, agent))}</b> {escape(text)}</div>")
        bar = f"<progress value={self._ended} max={max(self._total, 1)} style='margin:0 .6em'></progress>"
        whole = self._closed and self._ended >= self._total
        turns = "turn" if self._ended == 1 else "turns"
        state = f"{self._ended} {turns}" if whole else f"{bar}{self._ended} of {self._total} turns"
        head = f"<b>{escape(self._title)}</b> <span style='opacity:.7'>{state}</span>"
        style = "max-width:48em;max-height:40em;overflow-y:auto"
        self._handle.update(self._ipython.HTML(f"<div style='{style}'>{head}{''.join(shown)}</div>"))


class Count:
    """Counts an experiment's runs under the cell that plays it."""

    def __init__(self, title: str, total: int) -> None:
        from IPython import display

        self._ipython: Any = display  # which has no types
        self._handle = self._ipython.display(self._ipython.HTML("<progress></progress>"), display_id=True)
        self._title, self._total, self._ended = title, total, 0

    def __call__(self, _: Run) -> None:
        """A run has ended."""
        self._ended += 1
        bar = "" if self._ended >= self._total else f"<progress value={self._ended} max={self._total} style='margin:0 .6em'></progress>"
        runs = f"{self._ended} runs" if self._ended >= self._total else f"{self._ended} of {self._total} runs"
        html = f"<b>{escape(self._title)}</b> {bar}<span style='opacity:.7'>{runs}</span>"
        self._handle.update(self._ipython.HTML(html))
