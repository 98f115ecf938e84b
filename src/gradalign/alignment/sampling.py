"""An alignment on a random share of a batch's rows: its loss is a mean over rows, so it needs no correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gradalign.gradients.sparse import gather_densely

__all__ = ["gather_rows", "random_rows"]


def random_rows(count: Any, fraction: float, seed: Any) -> tf.Tensor:
    """Return the numbers of a random share of `count` rows, each once, int32 of shape (n,).

    Args:
        count: the number of rows, a number or an integer scalar; where it is known while tracing, so is n.
        fraction: the share, above 0; n is `fraction * count` rounded, and at least 1.
        seed: a `keras.random.SeedGenerator`, or a number for the same rows every time.

    Example:
        >>> random_rows(8, 0.25, seed=0).shape
        TensorShape([2])
    """
    known = tf.get_static_value(count)
    if known is None:
        n = tf.maximum(tf.cast(tf.round(fraction * tf.cast(count, tf.float32)), tf.int32), 1)
    else:
        n = max(round(fraction * int(known)), 1)
    order = keras.random.shuffle(tf.range(count if known is None else int(known)), seed=seed)
    return order[:n]


def gather_rows(by_task: Mapping[str, Any] | None, rows: tf.Tensor) -> dict[str, Any] | None:
    """Return `{task: the rows of its tensor}`; a task's value may be a list of tensors.

    Example:
        >>> gather_rows({"buy": tf.constant([1.0, 2.0, 3.0])}, tf.constant([2, 0]))["buy"].numpy().tolist()
        [3.0, 1.0]
    """
    if by_task is None:
        return None
    return {task: tf.nest.map_structure(lambda t: _rows_of(t, rows), value) for task, value in by_task.items()}


def _rows_of(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return gather_densely(tensor, rows) if tensor.dtype.is_floating else tf.gather(tensor, rows)
