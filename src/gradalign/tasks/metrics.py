"""What the logs say of the tasks: losses and metrics over labelled rows, as means of the whole epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError, nearest
from gradalign.gradients._keras_compat import metric_from
from gradalign.tasks.labels import LabelledRows

__all__ = ["TaskLogs", "TaskMetrics", "WeightedMean", "metrics_by_task"]


class WeightedMean(keras.metrics.Metric):
    """Sum of totals over sum of weights: an epoch's mean, whatever the batches.

    Example:
        >>> mean = WeightedMean(name="click_loss")
        >>> mean.update_state(tf.constant(3.0), tf.constant(2.0)); mean.update_state(tf.constant(1.0), tf.constant(2.0))
        >>> float(mean.result())
        1.0
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((), initializer="zeros", name="total", aggregation="sum")
        self.weight = self.add_variable((), initializer="zeros", name="weight", aggregation="sum")

    def update_state(self, total: tf.Tensor, weight: tf.Tensor) -> None:
        """Add a batch's weighted total and its weight, scalars of one replica."""
        self.total.assign_add(tf.cast(total, self.total.dtype))
        self.weight.assign_add(tf.cast(weight, self.weight.dtype))

    def result(self) -> tf.Tensor:
        """Return the mean since the last reset, a scalar; 0 where nothing had weight."""
        weight = tf.convert_to_tensor(self.weight)
        return tf.convert_to_tensor(self.total) / tf.where(weight == 0, tf.ones_like(weight), weight)


class TaskMetrics(keras.metrics.Metric):
    """The metrics of every task, under `<task>_<metric>` as Keras names them.

    Args:
        metrics: `{task: [metric, ...]}` of names, functions or metric objects; these see labelled rows, weighing 1.
        weighted_metrics: the same; these see labelled rows with their sample weight.
    """

    def __init__(self, metrics: dict[str, list[Any]], weighted_metrics: dict[str, list[Any]]) -> None:
        super().__init__(name="task_metrics")
        self.given = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        # (name in the logs, task, metric, whether it takes the sample weight)
        self.built_metrics: list[tuple[str, str, Any, bool]] = []
        self.is_built = False

    def build(self, labels: Mapping[str, Any], predictions: Mapping[str, Any]) -> None:
        """Make the metric objects, whose choice can depend on the shapes of labels and predictions.

        Args:
            labels: `{task: tensor or spec}`.
            predictions: the same.
        """
        if self.is_built:
            return
        names: set[str] = set()
        for argument, given in self.given.items():
            for task, identifiers in given.items():
                for identifier in identifiers:
                    metric = metric_from(identifier, *_as_columns(labels[task], predictions[task]))
                    name = f"{task}_{metric.name}"
                    if name in names and argument == "weighted_metrics":
                        name = f"{task}_weighted_{metric.name}"
                    number, free = 1, name
                    while free in names:
                        free, number = f"{name}_{number}", number + 1
                    names.add(free)
                    self.built_metrics.append((free, task, metric, argument == "weighted_metrics"))
        self.is_built = True

    def update_state(self, rows: Mapping[str, LabelledRows], predictions: Mapping[str, tf.Tensor]) -> None:
        """Add a batch; rows without a label weigh nothing in any metric."""
        self.build({task: of_task.y_true for task, of_task in rows.items()}, predictions)
        for _, task, metric, weighted in self.built_metrics:
            labelled = rows[task]
            weight = labelled.weight if weighted else tf.cast(labelled.mask, labelled.weight.dtype)
            y_pred = tf.where(
                _behind(labelled.mask, predictions[task]), predictions[task], tf.zeros_like(predictions[task])
            )
            metric.update_state(*_as_columns(labelled.y_true, y_pred), sample_weight=weight)

    @property
    def variables(self) -> list[Any]:
        """The variables of all metrics."""
        return [variable for _, _, metric, _ in self.built_metrics for variable in metric.variables]

    def reset_state(self) -> None:
        """Start every metric again."""
        for _, _, metric, _ in self.built_metrics:
            metric.reset_state()

    def result(self) -> dict[str, Any]:
        """Return `{name in the logs: value}` since the last reset."""
        return {name: metric.result() for name, _, metric, _ in self.built_metrics}


class TaskLogs:
    """All figures that a multi-task model logs of its tasks, kept apart from the state that is saved.

    Args:
        loss_weights: `{task: c_t}`, in task order.
        metrics: what `TaskMetrics` reports.
    """

    def __init__(self, loss_weights: dict[str, float], metrics: TaskMetrics) -> None:
        self.loss_weights = loss_weights
        self.loss = WeightedMean("loss")
        self.task_losses = {task: WeightedMean(f"{task}_loss") for task in loss_weights}
        self.regularization = WeightedMean("regularization_loss")
        self.alignment_loss = WeightedMean("alignment_loss")
        self.metrics = metrics

    def all(self, *, training: bool, aligned: bool) -> list[Any]:
        """Return the metric objects, the total loss first."""
        alignment = [self.alignment_loss] if training and aligned else []
        return [self.loss, *self.task_losses.values(), self.regularization, *alignment, self.metrics]

    def read(self, logs: dict[str, Any], *, training: bool) -> dict[str, Any]:
        """Return the logs as users see them.

        In evaluation the loss is put together from the tasks' exact means, so it does not depend on the batch size.
        """
        logs = dict(logs)
        regularization = logs.pop("regularization_loss")
        if not training:
            logs["loss"] = sum(c * logs[f"{task}_loss"] for task, c in self.loss_weights.items()) + regularization
        return logs


def _as_columns(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Return labels and predictions (tensors or specs), (B, 1) where predictions are (B,), unfit for metrics."""
    if y_pred.shape.rank != 1:
        return y_true, y_pred

    def column(values: Any) -> Any:
        if values.shape.rank != 1:
            return values
        if isinstance(values, tf.TensorSpec):
            return tf.TensorSpec([values.shape[0], 1], values.dtype)
        return values[:, None]

    return column(y_true), column(y_pred)


def _behind(mask: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(mask, [-1, *[1] * (tensor.shape.rank - 1)])


def metrics_by_task(metrics: Any, tasks: list[str], argument: str) -> dict[str, list[Any]]:
    """Return `metrics` as `{task: [metric, ...]}`.

    Raises:
        UserError: where it is not a dict keyed by task, or names an unknown task.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise UserError(f"{argument} is a dict keyed by task, such as {{'{tasks[0]}': ['AUC']}}; received {metrics!r}.")
    for name in metrics:
        if name not in tasks:
            raise UserError(
                f'{argument} names an unknown task "{name}"; the tasks are {", ".join(tasks)}.'
                f"{nearest(str(name), tasks)}"
            )
    found = {}
    for task in tasks:
        of_task = metrics.get(task)
        if of_task is not None:
            found[task] = list(of_task) if isinstance(of_task, (list, tuple)) else [of_task]
    return found
