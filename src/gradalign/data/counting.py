"""Counts of values that arrive part by part: exact for vocabularies, bounded in memory for numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gradalign.data.learning import value_counts

EXACT = 1 << 18  # distinct numbers of a column that are all kept
_PENDING = 1 << 16  # values that are gathered before they are merged into the rest


class ValueCounts:
    """Exact counts of texts or whole numbers; memory grows with the distinct values.

    Example:

    >>> counts = ValueCounts()
    >>> for part in (["b", "a"], ["b", None]):
    ...     counts.add(pa.array(part))
    >>> sorted(zip(*counts.table().to_pydict().values()))
    [('a', 1), ('b', 2)]
    """

    def __init__(self) -> None:
        self._merged: pa.Table | None = None
        self._pending: list[pa.Table] = []

    def add(self, values: pa.Array) -> None:
        """Count more values; null is not counted."""
        self._pending.append(value_counts(values))
        waiting = sum(len(part) for part in self._pending)
        if waiting > max(_PENDING, 0 if self._merged is None else len(self._merged)):
            self._merge()

    def _merge(self) -> None:
        parts = self._pending if self._merged is None else [self._merged, *self._pending]
        counted = pa.concat_tables(parts).group_by("value").aggregate([("count", "sum")])
        self._merged = pa.table({"value": counted["value"], "count": counted["count_sum"]})
        self._pending = []

    def table(self) -> pa.Table:
        """Return columns `value` and `count`."""
        if self._pending:
            self._merge()
        assert self._merged is not None, "nothing was added"
        return self._merged


class NumberCounts:
    """Distinct numbers with their counts, thinned where there are very many, and their mean and range.

    Exact up to `exact` distinct numbers. Beyond, neighbouring numbers are joined in equal shares, as in a merge tree
    (Munro and Paterson 1980; Manku, Rajagopalan and Lindsay, SIGMOD 1998), and numbers that fill such a share stay by
    themselves. Of N numbers, the rank of any cut between the kept ones is off by at most `error`, below
    `16 * (2 + log2(N / exact)) / exact * N`: with the default, under 0.1 % of a billion.

    Example:

    >>> counts = NumberCounts()
    >>> for part in ([3.0, 1.0], [3.0]):
    ...     counts.add(np.array(part))
    >>> counts.distinct_and_counts(), counts.error, counts.standardisation()["high"]
    ((array([1., 3.]), array([1, 2])), 0, 3.0)
    """

    def __init__(self, exact: int = EXACT) -> None:
        self._exact = exact
        self._levels: list[_Thinned | None] = [None]  # level i holds what 2^i fillings of level 0 were thinned to
        self.rows = 0
        self._mean = self._squares = 0.0
        self._low, self._high = np.inf, -np.inf

    def add(self, numbers: np.ndarray) -> None:
        """Count more finite numbers, float64 (N,)."""
        if not len(numbers):
            return
        self._add_moments(numbers)
        found = _Thinned(*np.unique(numbers, return_counts=True), 0)
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append(None)
            above = self._levels[level]
            found = found if above is None else above.with_(found)
            if len(found.values) <= self._exact and (level == 0 or above is None):
                self._levels[level] = found
                return
            self._levels[level] = None
            found = found.thinned(self._exact // 4)
            level += 1

    def _add_moments(self, numbers: np.ndarray) -> None:
        """Chan, Golub and LeVeque 1979."""
        rows, mean = len(numbers), float(numbers.mean())
        total, apart = self.rows + rows, mean - self._mean
        self._squares += float(numbers.var()) * rows + apart * apart * self.rows * rows / total
        self._mean += apart * rows / total
        self.rows = total
        self._low, self._high = min(self._low, float(numbers.min())), max(self._high, float(numbers.max()))

    def _all(self) -> _Thinned:
        found = _Thinned(np.empty(0), np.empty(0, np.int64), 0)
        for level in self._levels:
            found = found if level is None else found.with_(level)
        return found

    @property
    def error(self) -> int:
        """By how many rows the rank of a cut can be off; 0 where the counts are exact."""
        return self._all().error

    def distinct_and_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the kept numbers, ascending, and how many rows each stands for."""
        found = self._all()
        return found.values, found.counts

    def standardisation(self) -> dict[str, float] | None:
        """Return mean, scale and range as `gradalign.data.learning.standardisation`, None without any number."""
        if not self.rows:
            return None
        scale = float(np.sqrt(self._squares / self.rows))
        return {"mean": self._mean, "scale": scale if scale > 0 else 1.0, "low": self._low, "high": self._high}


class _Thinned:
    """Ascending numbers, the rows each stands for, and by how many rows a rank can be off."""

    def __init__(self, values: np.ndarray, counts: np.ndarray, error: int) -> None:
        self.values, self.counts, self.error = values, counts, error

    def with_(self, other: _Thinned) -> _Thinned:
        """Both together."""
        values = np.concatenate([self.values, other.values])
        counts = np.concatenate([self.counts, other.counts])
        distinct, place = np.unique(values, return_inverse=True)
        summed = np.bincount(place, counts, len(distinct)).astype(np.int64)
        return _Thinned(distinct, summed, self.error + other.error)

    def thinned(self, parts: int) -> _Thinned:
        """The same in at most three times `parts` numbers; each stands for those down to the one before it."""
        share = self.counts.sum() / parts
        heavy = self.counts > share
        part = np.floor((np.cumsum(self.counts) - self.counts) / share)
        is_first = np.ones(len(part), bool)
        is_first[1:] = (np.diff(part) > 0) | heavy[1:] | heavy[:-1]
        firsts = np.flatnonzero(is_first)
        counts = np.add.reduceat(self.counts, firsts)
        lasts = np.append(firsts[1:], len(part)) - 1
        joined = counts[lasts > firsts]
        return _Thinned(self.values[lasts], counts, self.error + int(2 * joined.max(initial=0)))
