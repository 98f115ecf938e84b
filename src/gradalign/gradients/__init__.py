"""Gradients that can be differentiated again: task gradients, their reversal, normalisation and recording.

This room imports TensorFlow and Keras only. In an own training loop:

>>> import tensorflow as tf
>>> table = tf.Variable([[0.5, -1.0], [2.0, 1.0]])
>>> with tf.GradientTape() as tape:
...     feature = tf.gather(table, [0, 1, 1])
...     losses, gradients = task_gradients(lambda s: {"click": s[:, 0] ** 2, "buy": s[:, 1] ** 4}, feature)
...     unit = {task: normalize(reverse_gradient(g, 1.0)) for task, g in gradients.items()}
>>> unit["buy"].numpy().tolist()
[[0.0, -1.0], [0.0, 1.0], [0.0, 1.0]]
"""

from gradalign.gradients.normalization import nonzero_rows, normalize
from gradalign.gradients.recording import find_layers, layer_paths, record_outputs
from gradalign.gradients.replacement import replace_task_gradients
from gradalign.gradients.replicas import replica_count, sum_over_replicas
from gradalign.gradients.reversal import GradientReversal, reverse_gradient
from gradalign.gradients.task_gradients import TaskGradients, TaskTape, task_gradients

__all__ = [
    "GradientReversal",
    "TaskGradients",
    "TaskTape",
    "find_layers",
    "layer_paths",
    "nonzero_rows",
    "normalize",
    "record_outputs",
    "replace_task_gradients",
    "replica_count",
    "reverse_gradient",
    "sum_over_replicas",
    "task_gradients",
]
