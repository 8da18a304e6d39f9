"""Tables of runs and experiments, as Arrow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from greenroom import _greenroom, html

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
        if hasattr(frame, "from_arrow"):
            try:
                return frame.from_arrow(self)
            except ImportError:  # pandas reads Arrow by pyarrow, which it does not require
                pass
        return frame(self.to_dict())

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
        columns = {name: cells for name, cells in self.to_dict().items() if any(one is not None for one in cells)}
        shown = list(zip(*columns.values(), strict=True))[:_SHOWN]
        notes = [f"the first {_SHOWN} of {len(self)} rows"] if len(self) > _SHOWN else []
        left = [name for name in self.column_names if name not in columns]
        notes += [f"without values: {', '.join(left)}"] if left else []
        return html.table(shown, list(columns)) + (f"<small>{'; '.join(notes)}</small>" if notes else "")
