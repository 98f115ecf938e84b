"""Alignments without a discriminator: the model descends a distance between the tasks' gradients itself."""

from __future__ import annotations

import tensorflow as tf

from gradalign.alignment.base import Alignment
from gradalign.alignment.rows import TaskRows
from gradalign.errors import UserError
from gradalign.gradients.reversal import with_gradient_of

__all__ = ["DirectAlignment", "mean_over_pairs", "squared_lengths"]


class DirectAlignment(Alignment):
    """Base class of alignments without weights. A subclass implements `distance(rows) -> scalar`.

    The value of a call is the distance itself, whatever the strength, so that logs of different weights compare;
    `weight × schedule` multiplies its gradient, as it does an adversary's.
    """

    def distance(self, rows: TaskRows) -> tf.Tensor:
        """Return this replica's part of the distance, differentiable; 0 where there is nothing to compare."""
        raise UserError(f"{type(self).__name__} does not implement distance(rows).")

    def align(self, rows: TaskRows, update_metrics: bool) -> tf.Tensor:
        """Return the distance, whose gradient is multiplied by the strength."""
        distance = self.distance(rows)
        return with_gradient_of(tf.stop_gradient(distance), distance, self.strength)

    def model_loss(self, rows: TaskRows) -> tf.Tensor:
        """Return the distance."""
        return self.distance(rows)


def mean_over_pairs(values: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
    """Return the mean of `values` (T, T) over pairs of different tasks that are both present, 0 where there is none.

    Args:
        values: symmetric; a pair that does not count may hold any finite number.
        present: (T,), 1 or 0; or (T, T), 1 where a pair counts.

    Example:
        >>> values = tf.constant([[9.0, 1.0, 5.0], [1.0, 9.0, 7.0], [5.0, 7.0, 9.0]])
        >>> float(mean_over_pairs(values, tf.constant([1.0, 1.0, 0.0])))
        1.0
    """
    counts = present[:, None] * present[None, :] if present.shape.rank == 1 else present
    counts = tf.cast(counts, values.dtype) * (1.0 - tf.eye(values.shape[0], dtype=values.dtype))
    return tf.reduce_sum(values * counts) / tf.maximum(tf.reduce_sum(counts), 1.0)


def squared_lengths(rows: tf.Tensor) -> tf.Tensor:
    """Return the squared length of each row (..., D), (...,)."""
    return tf.reduce_sum(tf.square(rows), axis=-1)
