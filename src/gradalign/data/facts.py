"""What inference and preprocessing ask of a column of the training rows, and the answers of a table in memory.

`gradalign.data.summary` gives the same answers for a file that is read once, part by part.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gradalign.data.columns import flatten, is_list, plain, typed
from gradalign.data.learning import finite, quantile_edges, standardisation, vocabulary


class ColumnFacts(Protocol):
    """Facts of one column; `raw` is its raw type, see `gradalign.data.columns`."""

    type: pa.DataType

    def is_empty(self) -> bool:
        """Whether every value is null."""

    def is_whole(self) -> bool:
        """Whether every finite number, of rows or of lists, is whole."""

    def distinct(self) -> int | None:
        """Number of distinct values that are not null; None where there are too many to count."""

    def vocabulary(self, raw: str, min_count: int, max_size: int | None) -> list[Any]:
        """The most frequent values, or values of lists, first."""

    def edges(self, raw: str, buckets: int) -> list[float]:
        """Edges of at most so many ranges of equal numbers of rows."""

    def standardisation(self, raw: str) -> dict[str, float] | None:
        """Mean, scale and range; None where there is no number."""

    def has_missing(self, raw: str) -> bool:
        """Whether a row has no number."""


class RowsFacts(Protocol):
    """Facts of the training rows."""

    column_names: list[str]

    @property
    def outcomes(self) -> pa.Table:
        """Rows that hold every combination of values of the columns that labels are made of."""

    def column(self, name: str) -> ColumnFacts:
        """Return the facts of a column."""


class TableColumn:
    """The facts of a column in memory."""

    def __init__(self, column: pa.ChunkedArray, name: str, source: str) -> None:
        self.type = column.type
        self._column, self._name, self._source = column, name, source

    def is_empty(self) -> bool:
        """Whether every value is null."""
        return bool(self._column.null_count == len(self._column))

    def is_whole(self) -> bool:
        """Whether every finite number is whole."""
        return whole(self._column)

    def distinct(self) -> int | None:
        """Number of distinct values; None where there are too many to count."""
        return int(pc.count_distinct(plain(self._column), mode="only_valid").as_py())

    def vocabulary(self, raw: str, min_count: int, max_size: int | None) -> list[Any]:
        """The most frequent values first."""
        return vocabulary(values_of(self._column, raw, self._name, self._source), min_count, max_size)

    def edges(self, raw: str, buckets: int) -> list[float]:
        """Edges of ranges of equal numbers of rows."""
        return quantile_edges(finite(self._typed(raw)), buckets)

    def standardisation(self, raw: str) -> dict[str, float] | None:
        """Mean, scale and range; None without any number."""
        numbers = finite(self._typed(raw))
        return standardisation(numbers) if len(numbers) else None

    def has_missing(self, raw: str) -> bool:
        """Whether a row has no number."""
        return missing(self._typed(raw))

    def _typed(self, raw: str) -> pa.Array:
        return typed(self._column, raw, self._name, self._source)


class TableFacts:
    """The facts of a table in memory.

    >>> facts = TableFacts(pa.table({"age": [31, 47, None]}), "the table")
    >>> facts.column("age").distinct(), facts.column("age").has_missing("int32")
    (2, True)
    """

    def __init__(self, table: pa.Table, source: str) -> None:
        self.column_names = list(table.column_names)
        self.outcomes = table
        self._source = source

    def column(self, name: str) -> ColumnFacts:
        """Return the facts of a column."""
        return TableColumn(self.outcomes[name], name, self._source)


def facts_of(rows: pa.Table | RowsFacts, source: str) -> RowsFacts:
    """Return the facts of a table, or the facts as they are."""
    return TableFacts(rows, source) if isinstance(rows, pa.Table) else rows


def values_of(column: pa.ChunkedArray, raw: str, name: str, source: str) -> pa.Array:
    """Return what a vocabulary is made of: the values of rows, or of lists, texts or whole numbers."""
    values = typed(flatten(column)[0] if is_list(column.type) else column, raw, name, source)
    if raw in ("float32", "float64"):
        values = typed(pa.chunked_array([values]), "int64", name, source)
    return values


def whole(column: pa.ChunkedArray) -> bool:
    """Whether the finite numbers of a column, or of its lists, are whole.

    >>> whole(pa.chunked_array([[1.0, None, float("inf")]])), whole(pa.chunked_array([[[1.5]]]))
    (True, False)
    """
    values = plain(pc.list_flatten(column) if is_list(column.type) else column)
    values = values.cast(pa.float64()).drop_null()
    values = values.filter(pc.is_finite(values))
    return bool(pc.all(pc.equal(pc.round(values), values), min_count=0).as_py())


def missing(values: pa.Array) -> bool:
    """Whether a value is null or NaN.

    >>> missing(pa.array([1.0, float("nan")]))
    True
    """
    return bool(pc.any(pc.is_null(values, nan_is_null=True)).as_py())
