"""Where the adapters' tests find what they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PYTHON = Path(__file__).parents[2]
EXAMPLES = PYTHON.parent / "examples" / "python"
SCENARIOS = PYTHON.parent / "scenarios"

# Runs a program, and returns what it prints.
Ran = Callable[..., str]
