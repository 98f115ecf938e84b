"""Rows of the case `tables`: the aligned step with small and with large tables, under row-wise and dense Adam.

`keras.layers.Embedding` reads its whole table before it looks rows up, which TensorFlow turns into a copy once a table
has been written row by row; `FieldEmbedding` looks rows up in the table itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras

from gradalign.benchmarks.keras_rows import aligned_model, row_of
from gradalign.benchmarks.networks import separate_tables
from gradalign.benchmarks.problem import RATE, Problem
from gradalign.benchmarks.row import Row, RowKind
from gradalign.optimizers import LazyAdam

__all__ = ["TABLE_ROWS"]

SMALL_ROWS = 10_000


def _row(problem: Problem, *, optimizer: Callable[..., Any], large: bool, of_keras: bool) -> Row:
    if not large:
        sizes = tuple(min(size, SMALL_ROWS) for size in problem.network.sizes)
        batches = [
            ({n: ids % size for (n, ids), size in zip(x.items(), sizes, strict=True)}, y) for x, y in problem.batches
        ]
        problem = dataclasses.replace(
            problem, network=dataclasses.replace(problem.network, sizes=sizes), batches=batches
        )
    keras.utils.set_random_seed(1)
    base = separate_tables(problem.network, list(problem.batches[0][0]), of_keras=of_keras)
    return row_of(aligned_model(problem, base, tables=optimizer(RATE)), problem)


def _kind(what: str, optimizer: Callable[..., Any], *, large: bool, of_keras: bool = False) -> RowKind:
    return RowKind(what, functools.partial(_row, optimizer=optimizer, large=large, of_keras=of_keras))


TABLE_ROWS: Mapping[str, RowKind] = {
    "lazy-adam-small": _kind("LazyAdam, 10,000 rows a table", LazyAdam, large=False),
    "lazy-adam-large": _kind("LazyAdam, 5 million rows a table", LazyAdam, large=True),
    "keras-layer-small": _kind("LazyAdam, keras.layers.Embedding, 10,000 rows", LazyAdam, large=False, of_keras=True),
    "keras-layer-large": _kind("LazyAdam, keras.layers.Embedding, 5 million", LazyAdam, large=True, of_keras=True),
    "keras-adam-small": _kind("Keras' Adam, 10,000 rows a table", keras.optimizers.Adam, large=False),
    "keras-adam-large": _kind("Keras' Adam, 5 million rows a table", keras.optimizers.Adam, large=True),
}
