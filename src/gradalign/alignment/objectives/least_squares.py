"""Squares instead of logarithms: rows far on the right side of the boundary still pull.

Mao et al., "Least Squares Generative Adversarial Networks", ICCV 2017, eq. 2, with a = 0 and b = 1 and, for the model,
c between them. For T tasks the discriminator has one score a task, which regresses to 1 on the task's rows and to 0 on
the others'; its optimum is the probability of the task. The model's c is 1/T, the optimum where tasks cannot be told
apart; with two tasks it is the middle of a and b, the paper's condition for a Pearson chi-square divergence (section
3.2).
"""

from __future__ import annotations

import keras
import tensorflow as tf

from gradalign.alignment.objectives.base import Objective
from gradalign.alignment.rows import TaskRows

__all__ = ["LeastSquares"]


@keras.saving.register_keras_serializable(package="gradalign")
class LeastSquares(Objective):
    """`L_D = mean_t mean_i 1/2 sum_u (D_u - [u = t])^2`, `L_M = mean_t mean_i 1/2 sum_u (D_u - 1/T)^2`.

    Example:
        >>> from gradalign.alignment.rows import TaskRows
        >>> rows = TaskRows(tf.ones([2, 1, 1]), tf.ones([2, 1], tf.bool))
        >>> scores = tf.constant([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> float(LeastSquares().discriminator_loss(scores, tf.eye(2)[:, None], rows))
        0.0
        >>> float(LeastSquares().model_loss(scores, rows))
        0.25
    """

    def discriminator_loss(self, scores: tf.Tensor, targets: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of half the mean squared distance to the targets."""
        return rows.mean(tf.reduce_sum(tf.square(scores - targets), axis=-1) / 2.0)

    def model_loss(self, scores: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of half the mean squared distance to 1/T."""
        return rows.mean(tf.reduce_sum(tf.square(scores - 1.0 / scores.shape[-1]), axis=-1) / 2.0)
