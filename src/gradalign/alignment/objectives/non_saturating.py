"""The model raises the likelihood of the other tasks instead of lowering that of its own.

Goodfellow et al., "Generative Adversarial Nets", NeurIPS 2014, section 3: rather than minimise `log(1 - D)`, whose
gradient vanishes where the discriminator is sure, maximise `log D`. The paper has two classes; with T tasks "the other
class" is here every task but the row's own, taken together:

    L_M = mean_t mean_i -log(1 - D_t(q_ti)) = mean_t mean_i [logsumexp over all z_u - logsumexp over u != t of z_u]

Its derivative at the score z_t is D_t: 1 where the discriminator is sure and 0 where it is wrong, so it neither
vanishes where it is needed nor grows without bound. With two tasks it is the paper's.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from gradalign.alignment.objectives.base import Objective, cross_entropy
from gradalign.alignment.rows import TaskRows

__all__ = ["NonSaturating"]


@keras.saving.register_keras_serializable(package="gradalign")
class NonSaturating(Objective):
    """Cross-entropy for the discriminator; the model minimises `-log(1 - D_t)`.

    Example:
        >>> from gradalign.alignment.rows import TaskRows
        >>> rows = TaskRows(tf.ones([2, 1, 1]), tf.ones([2, 1], tf.bool))
        >>> sure = tf.constant([[[50.0, 0.0]], [[0.0, 50.0]]])
        >>> float(NonSaturating().model_loss(sure, rows))
        50.0
    """

    def discriminator_loss(self, scores: tf.Tensor, targets: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of the mean cross-entropy over a task's rows."""
        return rows.mean(cross_entropy(scores, targets))

    def model_loss(self, scores: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of the mean of `-log(1 - D_t)` over a task's rows."""
        tasks = scores.shape[-1]
        own = tf.reshape(tf.eye(tasks) > 0, [tasks, *[1] * (scores.shape.rank - 2), tasks])
        # Of one task alone there are no others, and nothing to align.
        others = scores if tasks == 1 else tf.where(own, tf.constant(scores.dtype.min, scores.dtype), scores)
        return rows.mean(tf.reduce_logsumexp(scores, axis=-1) - tf.reduce_logsumexp(others, axis=-1))
