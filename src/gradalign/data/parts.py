"""Parts of a data set that are read when they are asked for: as a table, or in parts that fit into memory."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from gradalign.data.readers import (
    PART,
    check_file,
    is_parquet,
    open_parquet,
    read_parts,
    read_table,
    readable,
    split_order,
)

_ENDS = 1 << 16  # bytes at either end of a file that tell it from another of its size and time
_OVERHEAD = 3  # a table, what it is converted to and what comes of it are in memory together


class DataFile:
    """A Parquet or CSV file; nothing is read before it is asked for.

    Args:
        path: of the file.
        types: returns column -> Arrow type name, for a CSV.

    Raises:
        UserError: there is no such file, or it has an unknown suffix.
    """

    def __init__(self, path: str | Path, types: Callable[[], Mapping[str, str]] = dict) -> None:
        self.path = check_file(path)
        self.is_parquet = is_parquet(self.path)
        self._types = types

    @functools.cached_property
    def table(self) -> pa.Table:
        """All of its rows, which stay in memory as long as the file's object."""
        return read_table(self.path, self._types())

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Its columns and their types; of a Parquet file, only the footer is read."""
        if not self.is_parquet:
            return self.table.schema
        with readable(self.path):
            return open_parquet(self.path).schema_arrow

    @functools.cached_property
    def rows(self) -> int:
        """Number of its rows; of a Parquet file, only the footer is read."""
        if not self.is_parquet:
            return int(self.table.num_rows)
        with readable(self.path):
            return int(open_parquet(self.path).metadata.num_rows)

    @functools.cached_property
    def memory(self) -> int:
        """Bytes that training on all of its rows in memory takes: three times what its first rows fill, scaled up."""
        first = next(read_parts(self.path, rows=min(PART, 4096))) if self.is_parquet else self.table
        return _OVERHEAD * first.nbytes * self.rows // max(first.num_rows, 1)

    @functools.cached_property
    def identity(self) -> str:
        """Path, size, time of the last change and both ends of the file, and a CSV's types, as a digest."""
        about = self.path.stat()
        with self.path.open("rb") as file:
            ends = file.read(_ENDS)
            file.seek(max(about.st_size - _ENDS, 0))
            ends += file.read(_ENDS)
        types = {} if self.is_parquet else dict(self._types())
        facts = (str(self.path.resolve()), about.st_size, about.st_mtime_ns, sorted(types.items()))
        return hashlib.sha256(repr(facts).encode() + ends).hexdigest()


@dataclasses.dataclass(frozen=True)
class Split:
    """One side of a random split, see `gradalign.data.split_rows`."""

    share: float
    seed: int
    is_first: bool


class Part:
    """Some rows of a file, in the file's order.

    Args:
        file: the file.
        split: one side of a split of its rows; None for all of them.
        limit: so many of those rows at most.

    Example:

    >>> import tempfile, pyarrow.parquet
    >>> path = Path(tempfile.mkdtemp()) / "small.parquet"
    >>> pyarrow.parquet.write_table(pa.table({"age": range(5)}), path)
    >>> part = Part(DataFile(path), Split(0.4, seed=0, is_first=False))
    >>> part.rows, part.table()["age"].to_pylist(), [t["age"].to_pylist() for t in part.tables(rows=2)]
    (3, [1, 3, 4], [[1], [3], [4]])
    """

    def __init__(self, file: DataFile, split: Split | None = None, limit: int | None = None) -> None:
        self.file, self.split, self.limit = file, split, limit

    @functools.cached_property
    def _chosen(self) -> np.ndarray | None:
        if self.split is None:
            return None
        sides = split_order(self.file.rows, self.split.share, self.split.seed)
        return sides[0 if self.split.is_first else 1]

    @functools.cached_property
    def rows(self) -> int:
        """Number of rows."""
        rows = self.file.rows if self._chosen is None else len(self._chosen)
        return rows if self.limit is None else min(rows, self.limit)

    @property
    def identity(self) -> str:
        """What tells these rows from others, as text."""
        return f"{self.file.identity} {self.split} {self.limit}"

    def table(self) -> pa.Table:
        """Return all rows."""
        table = self.file.table if self._chosen is None else self.file.table.take(self._chosen)
        return table.slice(0, self.rows)

    def tables(self, columns: Sequence[str] | None = None, rows: int = PART) -> Iterator[pa.Table]:
        """Read the rows of a Parquet file in tables of at most `rows` rows."""
        first = done = 0  # of the file's rows, of these rows
        for read in read_parts(self.file.path, columns, rows):
            end, table = first + read.num_rows, read
            if self._chosen is not None:
                low, high = np.searchsorted(self._chosen, [first, end])
                table = read.take(self._chosen[low:high] - first)
            table = table.slice(0, self.rows - done)
            first, done = end, done + table.num_rows
            if table.num_rows:
                yield table
            if done == self.rows:
                return
