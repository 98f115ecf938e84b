"""One forward pass of a batch: predictions, labelled rows and losses of every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gradalign.gradients.replicas import sum_over_replicas
from gradalign.gradients.task_gradients import TaskTape
from gradalign.tasks.labels import LabelledRows, labelled_rows, labels_by_task, weights_by_task
from gradalign.tasks.losses import row_losses, weighted_mean

__all__ = ["Forward"]


class Forward:
    """What one forward pass leaves for losses, logs and the alignment.

    Attributes:
        predictions: `{task: tensor}` of the tasks that have a loss.
        rows: `{task: LabelledRows}`.
        totals: `{task: sum over this replica's rows of w l}`.
        weights: `{task: sum of w over the labelled rows of all replicas}`.
        losses: `{task: this replica's part of L_t}`: the total over that sum.
        shared: the shared tensors; `tape` records the way from them to `totals`. Both are empty without an alignment.
        row_task: the input that names each row's task, or `None`.
        sampled: numbers of the rows whose task gradients are taken; `None` for all.
    """

    def __init__(self) -> None:
        self.predictions: dict[str, tf.Tensor] = {}
        self.rows: dict[str, LabelledRows] = {}
        self.totals: dict[str, tf.Tensor] = {}
        self.weights: dict[str, tf.Tensor] = {}
        self.losses: dict[str, tf.Tensor] = {}
        self.shared: list[tf.Tensor] = []
        self.tape: TaskTape | None = None
        self.row_task: Any = None
        self.sampled: tf.Tensor | None = None

    @property
    def masks(self) -> dict[str, tf.Tensor]:
        """`{task: booleans (B,)}`, True where a row has the task's label."""
        return {task: rows.mask for task, rows in self.rows.items()}

    @property
    def batch_rows(self) -> tf.Tensor:
        """The number of rows of this replica's part of the batch, as a float scalar."""
        return tf.cast(tf.shape(next(iter(self.rows.values())).mask)[0], keras.config.floatx())

    @property
    def global_rows(self) -> tf.Tensor:
        """The number of rows of the batch on all replicas, as a float scalar."""
        return sum_over_replicas(self.batch_rows)

    def add_losses(
        self,
        losses: Mapping[str, Any],
        predictions: Mapping[str, tf.Tensor],
        y: Any,
        sample_weight: Any,
        known: list[str],
    ) -> None:
        """Fill in the rows and losses of every task that has a loss.

        Args:
            losses: `{task: loss}` as `compile` takes them.
            predictions: `{task: prediction}` of the base.
            y: labels by task, as the batch holds them.
            sample_weight: `None`, weights by task, or one array for all tasks.
            known: all tasks of the base; labels of those without a loss are passed over.
        """
        trained = list(losses)
        if isinstance(y, Mapping):
            y = {name: of_task for name, of_task in y.items() if name in losses or name not in known}
        labels = labels_by_task(y, trained)
        weights = weights_by_task(sample_weight, trained)
        for task in trained:
            rows = labelled_rows(labels[task], weights[task], keras.config.floatx())
            values = row_losses(task, losses[task], rows, predictions[task])
            row_weight = tf.cast(rows.weight, values.dtype)
            self.predictions[task] = predictions[task]
            self.rows[task] = rows
            self.totals[task] = tf.reduce_sum(tf.where(rows.mask, values, tf.zeros_like(values)) * row_weight)
            self.weights[task] = sum_over_replicas(tf.reduce_sum(row_weight))
            self.losses[task] = weighted_mean(self.totals[task], self.weights[task])
