"""Tables of runs and experiments, as Arrow."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any

from greenroom import _greenroom

__all__ = ["Table"]

# Rows that a notebook shows.
_SHOWN = 20


class Table:
    """A table. pandas, polars, DuckDB and pyarrow take it as it is, because it speaks Arrow's PyCapsule interface:

        pandas.DataFrame.from_arrow(table)      # pandas 3; table.to_pandas() works with pandas 2, too
        polars.DataFrame(table)
        duckdb.sql("select * from table")       # by the name of the variable
    """

    def __init__(self, native: _greenroom.Table) -> None:
        self._native = native

    @property
    def name(self) -> str:
        """Its name, e.g. `choices`."""
        return self._native.name

    @property
    def column_names(self) -> list[str]:
        """The names of its columns."""
        return self._native.column_names

    def to_dict(self) -> dict[str, list[Any]]:
        """Its columns by their names."""
        return self._native.to_dict()

    def rows(self) -> list[dict[str, Any]]:
        """Its rows, each with the names of the columns."""
        columns = self.to_dict()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of it."""
        frame: Any = import_module("pandas").DataFrame
        return frame.from_arrow(self) if hasattr(frame, "from_arrow") else frame(self.to_dict())

    def to_polars(self) -> Any:
        """A `polars.DataFrame` of it."""
        return import_module("polars").DataFrame(self)

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, column: str) -> list[Any]:
        return self.to_dict()[column]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<table {self.name!r}: {len(self)} rows, columns {', '.join(self.column_names)}>"

    def _repr_html_(self) -> str:
        columns = self.to_dict()
        heads = "".join(f"<th>{escape(name)}</th>" for name in columns)
        shown = list(zip(*columns.values(), strict=True))[:_SHOWN]
        rows = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in shown)
        more = f"<p>{len(self)} rows; the first {_SHOWN} are shown</p>" if len(self) > _SHOWN else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _cell(value: Any) -> str:
    """A value as a cell shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return escape(text if len(text) <= 120 else f"{text[:119]}…")
