"""A table that is made rather than read."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pyarrow as pa

from gradalign.data.parts import DataFile


class MadeTable(DataFile):
    """Stands where a file does, for rows that are in no file: a `Part` of it is like any other.

    Args:
        identity: what the rows are made from, as text: equal texts stand for equal rows.
        make: returns the rows; called once, when they are asked for.

    Example:

    >>> from gradalign.data.parts import Part
    >>> made = MadeTable("three rows", lambda: pa.table({"a": [1, 2, 3]}))
    >>> Part(made, limit=2).table()["a"].to_pylist()
    [1, 2]
    """

    def __init__(self, identity: str, make: Callable[[], pa.Table]) -> None:  # no file to check
        self.is_parquet = False
        self._make, self._identity = make, identity

    @functools.cached_property
    def table(self) -> pa.Table:
        """All rows."""
        return self._make()

    @functools.cached_property
    def identity(self) -> str:
        """What tells these rows from others, as text."""
        return self._identity
