"""Which rows have a task's label: NaN in the label, or a sample weight of 0, means that a row has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.errors import UserError, nearest

__all__ = [
    "LabelledRows",
    "completed_weights",
    "labelled_rows",
    "labels_by_task",
    "refuse_text_labels",
    "weights_by_task",
]


class LabelledRows:
    """One task's labels in a batch.

    Attributes:
        y_true: the labels, made safe: zeros where a row has none.
        weight: (B,) float32 or float64, the sample weight, 0 where a row has no label.
        mask: booleans (B,), True where a row has a label.
    """

    def __init__(self, y_true: tf.Tensor, weight: tf.Tensor, mask: tf.Tensor) -> None:
        self.y_true = y_true
        self.weight = weight
        self.mask = mask


def labelled_rows(y_true: Any, sample_weight: Any, dtype: str) -> LabelledRows:
    """Return the labels of one task with the rows that have one.

    Args:
        y_true: labels (B,), (B, 1) or (B, ...); float labels that hold a NaN anywhere in a row are missing.
        sample_weight: `None`, or weights (B,) or (B, 1).
        dtype: float dtype of the weights.

    Example:
        >>> rows = labelled_rows(tf.constant([1.0, float("nan"), 0.0]), tf.constant([2.0, 1.0, 0.0]), "float32")
        >>> rows.mask.numpy().tolist(), rows.weight.numpy().tolist(), rows.y_true.numpy().tolist()
        ([True, False, False], [2.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    """
    y_true = tf.convert_to_tensor(y_true)
    missing = tf.zeros(tf.shape(y_true)[:1], tf.bool)
    if y_true.dtype.is_floating:
        nan = tf.math.is_nan(y_true)
        missing = tf.reduce_any(nan, axis=list(range(1, y_true.shape.rank)))
        # Before any loss sees it: `where` behind a loss does not keep NaN out of the gradient.
        y_true = tf.where(nan, tf.zeros_like(y_true), y_true)
    weight = tf.ones_like(missing, dtype=dtype) if sample_weight is None else _row_weight(sample_weight, dtype)
    mask = tf.logical_and(tf.logical_not(missing), tf.not_equal(weight, 0))
    return LabelledRows(y_true, tf.where(mask, weight, tf.zeros_like(weight)), mask)


def _row_weight(sample_weight: Any, dtype: str) -> tf.Tensor:
    weight = tf.cast(sample_weight, dtype)
    if weight.shape.rank == 2 and weight.shape[-1] == 1:
        weight = tf.squeeze(weight, axis=-1)
    if weight.shape.rank != 1:
        raise UserError(f"A sample weight is one number for each row, (B,); received shape {weight.shape}.")
    return weight


def labels_by_task(y: Any, tasks: list[str]) -> dict[str, Any]:
    """Return `y` as `{task: labels}` in the order of `tasks`.

    Raises:
        UserError: where `y` is not a dict, lacks a task, names an unknown one or holds text.
    """
    if not isinstance(y, Mapping):
        raise UserError(f"Labels are a dict keyed by task, {{{', '.join(tasks)}}}; received {type(y).__name__}.")
    for name in y:
        if name not in tasks:
            raise UserError(
                f'The labels name an unknown task "{name}"; the tasks are {", ".join(tasks)}.'
                f"{nearest(str(name), tasks)}"
            )
    for task in tasks:
        if task not in y:
            raise UserError(f'The labels lack task "{task}"; give NaN for the rows that have no label.')
    refuse_text_labels(y)
    return {task: y[task] for task in tasks}


def refuse_text_labels(y: Any) -> None:
    """Raise where a task's labels are words or Python objects, which Keras refuses without naming them."""
    for task, labels in y.items() if isinstance(y, Mapping) else ():
        is_array = isinstance(labels, np.ndarray)
        if labels.dtype.kind in "USO" if is_array else getattr(labels, "dtype", None) == tf.string:
            raise UserError(f'The labels of task "{task}" are text or objects; give numbers, such as 0 and 1.')


def weights_by_task(sample_weight: Any, tasks: list[str]) -> dict[str, Any]:
    """Return `sample_weight` as `{task: weights or None}`; a missing task weighs 1, one array weighs for all tasks.

    Raises:
        UserError: where it names an unknown task.
    """
    if sample_weight is None:
        return dict.fromkeys(tasks)
    if not isinstance(sample_weight, Mapping):
        if isinstance(sample_weight, (list, tuple)):
            raise UserError(
                "Sample weights are a dict keyed by task or one array for all; "
                f"received {type(sample_weight).__name__}."
            )
        return dict.fromkeys(tasks, sample_weight)
    for name in sample_weight:
        if name not in tasks:
            raise UserError(
                f'sample_weight names an unknown task "{name}"; the tasks are {", ".join(tasks)}.'
                f"{nearest(str(name), tasks)}"
            )
    return {task: sample_weight.get(task) for task in tasks}


def completed_weights(y: Any, sample_weight: Any) -> Any:
    """Return the weights of arrays with ones for the tasks that are missing, since Keras slices complete dicts only.

    Args:
        y: labels; anything but a dict keyed by task leaves `sample_weight` as it is.
        sample_weight: what the user gave.

    Raises:
        UserError: where `sample_weight` names a task that `y` does not have.

    Example:
        >>> {t: w.tolist() for t, w in completed_weights({"click": [1, 0], "buy": [0, 0]}, {"buy": np.ones(2)}).items()}
        {'click': [1.0, 1.0], 'buy': [1.0, 1.0]}
    """
    if not isinstance(y, Mapping) or not isinstance(sample_weight, Mapping):
        return sample_weight
    weights = weights_by_task(sample_weight, list(y))
    return {
        task: np.ones(len(label), keras.config.floatx()) if weights[task] is None else weights[task]
        for task, label in y.items()
    }
