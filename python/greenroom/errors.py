"""Exceptions of this package."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["Diagnostic", "EngineError", "GreenroomError", "ModelError", "RunError", "ScenarioError"]


class GreenroomError(Exception):
    """Anything that could not be done; the base of the others."""


class ModelError(GreenroomError):
    """A model can't be found or opened, or can't do what it is asked."""


class EngineError(GreenroomError):
    """The engine can't serve a request.

    Attributes:
        kind: `notfound`, `model`, `request`, `template`, `store`, `inuse`, `device`, `closed`, `internal` or `forked`.
        code: What the server calls a refusal of `Engine.request`, e.g. `context_length_exceeded`, if it has a name.
    """

    def __init__(self, message: str, kind: str = "internal", code: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.code = kind, code


class Diagnostic(NamedTuple):
    """A mistake in a scenario.

    Attributes:
        severity: `error` or `warning`.
        code: The kind of mistake, e.g. `unknown-agent`.
        message: What was found, and what was expected.
        path: The field, e.g. `phases[2].agents[1]`.
        file: The file as it was named.
        line: Its line, from 1.
        column: Its column in characters, from 1.
        help: What to do, if that is known.
    """

    severity: str
    code: str
    message: str
    path: str
    file: str
    line: int
    column: int
    help: str | None


def read_diagnostics(text: str) -> list[Diagnostic]:
    """Diagnostics from the JSON that the program writes."""
    return [Diagnostic(**one) for one in json.loads(text)]


class ScenarioError(GreenroomError):
    """A scenario has errors; it prints them as `greenroom check` does.

    Attributes:
        diagnostics: The errors and warnings, in the order of the text.
    """

    def __init__(self, rendered: str, diagnostics: str = "[]") -> None:
        super().__init__(rendered)
        self.diagnostics = read_diagnostics(diagnostics)


class RunError(GreenroomError):
    """A run failed. What was recorded before is kept, and `run(…, out=FOLDER, resume=True)` goes on from there.

    Attributes:
        exit_code: The exit code that the program would have had.
    """

    def __init__(self, message: str, exit_code: int = 4) -> None:
        super().__init__(message)
        self.exit_code = exit_code
