"""Tasks of a model: their labels, losses and metrics over the rows that have a label."""

from gradalign.tasks.labels import LabelledRows, labelled_rows, labels_by_task, weights_by_task
from gradalign.tasks.losses import check_reduction, row_losses, weighted_mean
from gradalign.tasks.metrics import TaskMetrics, WeightedMean, metrics_by_task

__all__ = [
    "LabelledRows",
    "TaskMetrics",
    "WeightedMean",
    "check_reduction",
    "labelled_rows",
    "labels_by_task",
    "metrics_by_task",
    "row_losses",
    "weighted_mean",
    "weights_by_task",
]
