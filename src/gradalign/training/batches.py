"""Batches for training: every epoch in another order, which depends on nothing but the seed and the epoch's number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

Arrays = Mapping[str, np.ndarray]


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Number of batches that hold `rows` rows; the last one may be smaller.

    >>> steps_per_epoch(10, 4)
    3
    """
    return math.ceil(rows / batch_size)


def shuffled_batches(
    x: Arrays, y: Arrays, batch_size: int, seed: int, first_epoch: int, epochs: int
) -> tf.data.Dataset:
    """Return the batches of the epochs `first_epoch` to `epochs - 1`, one after the other.

    Each epoch's order is a pure function of (seed, epoch), so a run that is resumed at epoch 3 sees what it would have
    seen without the interruption. Give `fit` the number of batches as `steps_per_epoch`.

    Args:
        x: {field: (rows, ...)}.
        y: {task: (rows,)}.
        batch_size: rows a batch; the last batch of an epoch may be smaller.
        seed: of the order.
        first_epoch: the first epoch's number, from 0.
        epochs: the number after the last epoch's.

    Returns:
        A dataset of (x, y) batches, of `(epochs - first_epoch) * steps_per_epoch(rows, batch_size)` elements.

    >>> data = shuffled_batches({"a": np.arange(5)}, {"t": np.arange(5.0)}, 2, seed=0, first_epoch=1, epochs=2)
    >>> batches = [x["a"].tolist() for x, _ in data.as_numpy_iterator()]
    >>> [len(b) for b in batches], sorted(sum(batches, []))
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """
    rows = len(next(iter(y.values())))
    arrays = {name: tf.constant(a) for name, a in x.items()}, {name: tf.constant(a) for name, a in y.items()}

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(tf.range(rows, dtype=tf.int64), seed=key)
        return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

    def take(indices: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        return tf.nest.map_structure(lambda a: tf.gather(a, indices), arrays)

    with tf.device("CPU"):
        order = tf.data.Dataset.range(first_epoch, epochs).flat_map(one_epoch)
        return order.map(take, num_parallel_calls=2, deterministic=True).prefetch(4)


def batches(x: Arrays, y: Arrays, batch_size: int) -> tf.data.Dataset:
    """Return the rows in their own order, for validation.

    >>> data = batches({"a": np.arange(3)}, {"t": np.arange(3.0)}, 2)
    >>> [x["a"].tolist() for x, _ in data.as_numpy_iterator()]
    [[0, 1], [2]]
    """
    with tf.device("CPU"):
        return tf.data.Dataset.from_tensor_slices((dict(x), dict(y))).batch(batch_size).prefetch(4)
