"""How often a discriminator names the task of a gradient, with chance at 1 / number of tasks whatever the labels."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

__all__ = ["BalancedAccuracy"]


class BalancedAccuracy(keras.metrics.Metric):
    """Mean over tasks of the share of rows that the discriminator names right; tasks without rows do not count.

    Args:
        tasks: how many.
        by_label: a task's share is the mean of those of its positive and of its negative rows.

    Example:
        >>> metric = BalancedAccuracy(2)
        >>> metric.update_state(tf.constant([[True, True, True], [False, True, True]]),
        ...                     tf.constant([[True, True, True], [True, True, False]]))
        >>> float(metric.result())
        0.75
    """

    def __init__(
        self, tasks: int, name: str = "discriminator_accuracy", *, by_label: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        shape = (tasks, 2) if by_label else (tasks, 1)
        self.right = self.add_variable(shape, initializer="zeros", name="right", aggregation="sum")
        self.rows = self.add_variable(shape, initializer="zeros", name="rows", aggregation="sum")

    def update_state(self, right: tf.Tensor, kept: tf.Tensor, positives: tf.Tensor | None = None) -> None:
        """Add a batch: booleans (T, B, ...); `positives` with `by_label` only."""
        axes = list(range(1, kept.shape.rank))
        classes = [kept] if positives is None else [kept & positives, kept & tf.logical_not(positives)]

        def count(rows: list[tf.Tensor]) -> tf.Tensor:
            return tf.stack([tf.reduce_sum(tf.cast(of_class, self.rows.dtype), axis=axes) for of_class in rows], axis=1)

        self.right.assign_add(count([right & of_class for of_class in classes]))
        self.rows.assign_add(count(classes))

    def result(self) -> tf.Tensor:
        """Return the balanced accuracy since the last reset, a scalar; 0 where no task had rows."""
        rows = tf.convert_to_tensor(self.rows)
        shares = tf.convert_to_tensor(self.right) / tf.maximum(rows, 1.0)
        found = tf.reduce_sum(tf.cast(rows > 0, rows.dtype), axis=1)
        by_task = tf.reduce_sum(shares, axis=1) / tf.maximum(found, 1.0)
        return tf.reduce_sum(by_task) / tf.maximum(tf.reduce_sum(tf.cast(found > 0, rows.dtype)), 1.0)
