"""A task's loss: the mean of its row losses over the rows that have the label, weighted by sample weight."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients._keras_compat import has_mask, loss_from
from gradalign.tasks.labels import LabelledRows

__all__ = ["check_reduction", "check_rows", "check_second_derivative", "row_losses", "weighted_mean"]


def row_losses(task: str, identifier: Any, rows: LabelledRows, y_pred: tf.Tensor) -> tf.Tensor:
    """Return the loss of each row, (B,), as Keras computes it before its reduction.

    Args:
        task: name of the task, for messages.
        identifier: what `compile` takes as loss: a name, a function of (y_true, y_pred), or a `keras.losses.Loss`.
        rows: the task's labels.
        y_pred: predictions, (B,), (B, 1) or (B, ...).

    Raises:
        UserError: for a loss with `reduction="sum"`, one that returns a scalar or anything else but one number for each
            row, labels whose shape does not go with the predictions', and masked predictions of sequences.
    """
    y_true = rows.y_true
    if y_pred.shape.rank == 1:
        # Keras' losses average over the last axis, which would be the batch.
        y_pred = y_pred[:, None]
    if y_true.shape.rank == 1 and y_pred.shape.rank == 2 and y_pred.shape[-1] == 1:
        y_true = y_true[:, None]
    loss = loss_from(identifier, y_true, y_pred)
    check_reduction(task, loss)
    dtype = tf.as_dtype(loss.dtype)
    try:
        values = loss.call(tf.cast(y_true, dtype), tf.cast(y_pred, dtype))
    except ValueError as error:
        raise UserError(
            f'The loss of task "{task}" does not take labels of shape {rows.y_true.shape} with predictions of shape '
            f"{y_pred.shape}: {' '.join(str(error).split())}"
        ) from error
    if values.shape.rank == 0:
        raise UserError(
            f'The loss of task "{task}" returns one number for the whole batch; '
            "it has to return one for each row, (B,), so that rows without a label can be left out."
        )
    if not values.shape[:1].is_compatible_with(rows.mask.shape):
        raise UserError(
            f'The loss of task "{task}" returns {values.shape[0]} values for {rows.mask.shape[0]} rows; it has to '
            "return one for each row, (B,), first axis first."
        )
    if values.shape.rank > 1:
        if has_mask(y_pred):
            raise UserError(
                f'The predictions of task "{task}" are sequences with a mask, which row losses cannot follow; '
                "pool them, or give one prediction for each row."
            )
        values = tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
    return values


def weighted_mean(total: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return `total / weight`, and 0 with zero gradient where there is no weight.

    Example:
        >>> float(weighted_mean(tf.constant(3.0), tf.constant(2.0)))
        1.5
        >>> float(weighted_mean(tf.constant(0.0), tf.constant(0.0)))
        0.0
    """
    return total / tf.where(weight == 0, tf.ones_like(weight), weight)


def check_reduction(task: str, loss: Any) -> None:
    """Refuse a loss object that sums over the batch; names and functions pass, since they do not reduce."""
    if isinstance(loss, keras.losses.Loss) and loss.reduction == "sum":
        raise UserError(
            f'The loss of task "{task}" has reduction="sum", which grows with the batch and with the number of labels; '
            'use reduction="sum_over_batch_size", and loss_weights to weigh the task.'
        )


def check_rows(task: str, loss: Any) -> None:
    """Refuse a loss whose value for one row depends on other rows, so that rows without a label cannot be left out."""
    if _is_kind(loss, "Circle", "circle"):
        raise UserError(
            f'The loss of task "{task}" is Circle, which compares the rows of a batch with one another, so that rows '
            "without a label cannot be left out; use a loss that judges each row by itself."
        )


def check_second_derivative(task: str, loss: Any) -> None:
    """Refuse a loss for an aligned task where TensorFlow has no second derivative of it."""
    if _is_kind(loss, "CTC", "ctc"):
        raise UserError(
            f'The loss of task "{task}" is CTC, whose second derivative is NaN in TensorFlow, so that it cannot be '
            "aligned; name the other tasks, as in AdversarialAlignment(tasks=[...])."
        )


def _is_kind(loss: Any, class_name: str, function_name: str) -> bool:
    if isinstance(loss, str):
        return loss in (class_name, function_name)
    return isinstance(loss, getattr(keras.losses, class_name)) or loss is getattr(keras.losses, function_name)
