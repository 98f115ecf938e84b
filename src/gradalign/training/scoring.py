"""Scores of a model for encoded rows."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np

from gradalign.data import EncodedRows

_BATCH = 8192
_AT_ONCE = 64 * _BATCH  # rows that are in memory as arrays


def scores(base: keras.Model, x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return each task's probability of the positive, float32 (rows,).

    Args:
        base: a model that returns {task: (rows, 1)}; of a `MultiTaskModel` its `base`.
        x: {field: (rows, ...)}, as `Preprocessing.encode` returns it.

    >>> row = keras.Input((), name="age")
    >>> score = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros", name="buy")(keras.ops.expand_dims(row, 1))
    >>> scores(keras.Model({"age": row}, {"buy": score}), {"age": np.array([31.0, 47.0])})
    {'buy': array([0.5, 0.5], dtype=float32)}
    """
    found = base.predict(dict(x), batch_size=_BATCH, verbose=0)
    return {task: np.asarray(value, np.float32).reshape(-1) for task, value in found.items()}


def scores_of_rows(base: keras.Model, rows: EncodedRows) -> dict[str, np.ndarray]:
    """Return what `scores` does for rows that may be in a file, of which a part is read at a time."""
    parts = [scores(base, rows.take(slice(i, i + _AT_ONCE))[0]) for i in range(0, len(rows), _AT_ONCE)]
    return {task: np.concatenate([part[task] for part in parts]) for task in parts[0]}
