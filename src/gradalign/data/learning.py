"""What preprocessing learns from the training table: vocabularies, bucket edges, means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def vocabulary(values: pa.Array, min_count: int = 1, max_size: int | None = None) -> list[Any]:
    """Return the values that occur at least `min_count` times, the most frequent first, ties by value.

    Args:
        values: texts or whole numbers; null is not counted.
        min_count: rarer values are left out.
        max_size: so many at most; None for all.

    Example:

    >>> vocabulary(pa.array(["b", "a", "b", None, "c"]), min_count=1, max_size=2)
    ['b', 'a']
    """
    return most_frequent(value_counts(values), min_count, max_size)


def value_counts(values: pa.Array) -> pa.Table:
    """Return the distinct values and how often each occurs, as columns `value` and `count`; null is not counted.

    >>> value_counts(pa.array(["b", "a", "b", None])).to_pydict()
    {'value': ['b', 'a'], 'count': [2, 1]}
    """
    counted = pc.value_counts(values.drop_null())
    return pa.table({"value": counted.field("values"), "count": counted.field("counts")})


def most_frequent(counted: pa.Table, min_count: int, max_size: int | None) -> list[Any]:
    """Return the vocabulary of counted values, see `vocabulary`.

    >>> most_frequent(value_counts(pa.array([7, 8, 8])), 1, None)
    [8, 7]
    """
    table = counted.filter(pc.field("count") >= min_count)
    table = table.sort_by([("count", "descending"), ("value", "ascending")])
    return table["value"].slice(0, max_size).to_pylist()


def quantile_edges(values: np.ndarray, buckets: int) -> list[float]:
    """Return the edges that cut `values` into at most `buckets` ranges of about equal numbers of rows.

    A value that alone fills a range (a column that is mostly 0) gets one of its own, and the rest of the ranges is
    spread over the rest of the rows; plain quantiles would all fall on that value and leave one range.

    Args:
        values: finite numbers, (N,).
        buckets: at least 2.

    Returns:
        Ascending edges, fewer than `buckets`; a number belongs to the range right of the edges that it reaches. An edge
        lies half way between two neighbouring values.

    Example:

    >>> quantile_edges(np.array([0.0] * 90 + [1, 2, 3, 4]), buckets=3)
    [0.5, 2.5]
    """
    return edges_of_counts(*np.unique(np.asarray(values, "float64"), return_counts=True), buckets)


def edges_of_counts(distinct: np.ndarray, counts: np.ndarray, buckets: int) -> list[float]:
    """Return the edges of numbers of which each distinct one is given once, ascending, with its count.

    >>> edges_of_counts(np.array([0.0, 1, 2, 3, 4]), np.array([90, 1, 1, 1, 1]), buckets=3)
    [0.5, 2.5]
    """
    if len(distinct) <= buckets:
        return _between(distinct, np.ones(max(len(distinct) - 1, 0), bool))
    share = counts.sum() / buckets
    while True:
        heavy = counts > share
        light = np.where(heavy, 0, counts)
        before = np.cumsum(light) - light
        for parts in range(buckets - int(heavy.sum()), 0, -1):
            # Range of a light value by the rows before it; a heavy value is cut off on both sides.
            part = np.floor(before * parts / max(light.sum(), 1))
            cut = (np.diff(part) > 0) | heavy[1:] | heavy[:-1]
            if cut.sum() < buckets:
                return _between(distinct, cut)
        share *= 1.5  # too many heavy values lie apart: fewer of them get a range of their own


def _between(distinct: np.ndarray, cut: np.ndarray) -> list[float]:
    """An edge between `distinct[i]` and `distinct[i + 1]` for every i with `cut[i]`."""
    low, high = distinct[:-1][cut], distinct[1:][cut]
    middle = low / 2 + high / 2
    return np.where(middle > low, middle, high).tolist()  # neighbouring floats have nothing between them


def finite(values: pa.Array) -> np.ndarray:
    """Return the finite numbers of a column, float64 (N,).

    >>> finite(pa.array([1.0, None, float("inf")]))
    array([1.])
    """
    numbers = values.drop_null().to_numpy(zero_copy_only=False).astype("float64")
    return numbers[np.isfinite(numbers)]


def standardisation(numbers: np.ndarray) -> dict[str, float]:
    """Return mean, scale (standard deviation, 1 where it is 0) and range of `numbers`, float64 (N,), N > 0.

    >>> standardisation(np.array([0.0, 4.0]))
    {'mean': 2.0, 'scale': 2.0, 'low': 0.0, 'high': 4.0}
    """
    scale = float(numbers.std())
    return {
        "mean": float(numbers.mean()),
        "scale": scale if scale > 0 else 1.0,
        "low": float(numbers.min()),
        "high": float(numbers.max()),
    }
