"""Tasks of a model: their labels, losses and metrics over the rows that have a label."""

from gradalign.tasks.compile_arguments import loss_weights_by_task, losses_by_task
from gradalign.tasks.fit_arguments import (
    FitArguments,
    read_data_arguments,
    read_fit_arguments,
    refuse_class_weight,
)
from gradalign.tasks.forward import Forward
from gradalign.tasks.inputs import Batch, check_base, own_inputs, predictions_by_task
from gradalign.tasks.labels import LabelledRows, labelled_rows, labels_by_task, weights_by_task
from gradalign.tasks.losses import check_reduction, row_losses, weighted_mean
from gradalign.tasks.metrics import TaskLogs, TaskMetrics, WeightedMean, metrics_by_task
from gradalign.tasks.mode_arguments import check_compiled, check_optimizers, layers_without_xla
from gradalign.tasks.specs import specs_from_config, specs_of, specs_of_symbols, specs_to_config

__all__ = [
    "Batch",
    "FitArguments",
    "Forward",
    "LabelledRows",
    "TaskLogs",
    "TaskMetrics",
    "WeightedMean",
    "check_base",
    "check_compiled",
    "check_optimizers",
    "check_reduction",
    "labelled_rows",
    "labels_by_task",
    "layers_without_xla",
    "loss_weights_by_task",
    "losses_by_task",
    "metrics_by_task",
    "own_inputs",
    "predictions_by_task",
    "read_data_arguments",
    "read_fit_arguments",
    "refuse_class_weight",
    "row_losses",
    "specs_from_config",
    "specs_of",
    "specs_of_symbols",
    "specs_to_config",
    "weighted_mean",
    "weights_by_task",
]
