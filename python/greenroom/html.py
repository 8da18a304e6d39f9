"""How results look in a notebook: only the notebook's own colours, so that light and dark themes both work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["preformatted", "table", "value"]

_MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"


def preformatted(text: str) -> str:
    """A text as the terminal shows it."""
    return f'<pre style="{_MONO}">{escape(text)}</pre>'


def value(given: Any) -> str:
    """A value as a cell shows it."""
    if given is None:
        return ""
    if isinstance(given, float):
        return f"{given:.4g}"
    if isinstance(given, int) and not isinstance(given, bool):
        return f"{given:,}".replace(",", "\u2009") if abs(given) >= 10_000 else str(given)
    text = str(given)
    return escape(text if len(text) <= 160 else f"{text[:159]}…")


def table(rows: Iterable[Sequence[Any]], heads: Sequence[str] = (), *, raw: bool = False) -> str:
    """A table; with `raw` its cells are HTML already. Numbers stand at the right, anything else at the left."""

    def cell(given: Any) -> str:
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        style = "text-align:right;font-variant-numeric:tabular-nums" if number else "text-align:left"
        return f'<td style="{style}">{given if raw and isinstance(given, str) else value(given)}</td>'

    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(cell(one) for one in row)}</tr>" for row in rows)
    above = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return f'<div style="overflow-x:auto"><table>{above}<tbody>{body}</tbody></table></div>'
