"""A run in a notebook while it is played: how far it is, and what was said last."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenroom.play import Event

__all__ = ["Live", "in_notebook"]

# Seconds between two pictures.
_PACE = 0.1
# Turns that are shown.
_SHOWN = 12


def in_notebook() -> bool:
    """True in a kernel of Jupyter."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


class Live:
    """Shows a run's events under the cell that plays it."""

    def __init__(self) -> None:
        from IPython import display

        self._ipython: Any = display  # which has no types
        self._handle = self._ipython.display(self._ipython.HTML("<progress></progress>"), display_id=True)
        self._names: dict[str, str] = {}
        self._title, self._total, self._ended = "", 0, 0
        self._lines: list[tuple[str, str]] = []
        self._speaking: dict[str, str] = {}
        self._shown = 0.0

    def __call__(self, event: Event) -> None:
        """Takes an event; the picture changes at most ten times a second."""
        data = event.data
        if event.name == "plan":
            self._names = {one["key"]: one["name"] for one in data["agents"]}
            self._title = str(data["title"] or data["scenario"])
            self._total = sum(len(phase["turns"]) for phase in data["phases"])
        elif event.name == "text":
            self._speaking[data["agent"]] = self._speaking.get(data["agent"], "") + data["text"]
        elif event.name == "turn":
            self._ended += 1
            self._speaking.pop(data["agent"], None)
            self._lines.append((data["agent"], data["text"]))
        elif event.name == "skipped":
            self._ended += 1
        if time.monotonic() - self._shown > _PACE:
            self._draw()

    def close(self) -> None:
        """The last picture."""
        self._speaking.clear()
        self._draw()

    def _draw(self) -> None:
        self._shown = time.monotonic()
        lines = [*self._lines, *self._speaking.items()][-_SHOWN:]
        said = "".join(
            f"<p style='margin:.3em 0'><b>{escape(self._names.get(key, key))}</b> {escape(text)}</p>" for key, text in lines
        )
        bar = f"<progress value={self._ended} max={max(self._total, 1)}></progress> {self._ended} of {self._total} turns"
        self._handle.update(self._ipython.HTML(f"<div style='max-width:48em'><b>{escape(self._title)}</b> {bar}{said}</div>"))
