"""The default: the model ascends the discriminator's cross-entropy, by gradient reversal.

Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 2016, section 4; ASTMT, Maninis et al., CVPR 2019,
section 4. Where the discriminator is sure of a row, the reversed gradient of that row vanishes.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from gradalign.alignment.objectives.base import Objective, cross_entropy
from gradalign.alignment.rows import TaskRows

__all__ = ["Reversal"]


@keras.saving.register_keras_serializable(package="gradalign")
class Reversal(Objective):
    """Cross-entropy for the discriminator; the model ascends it.

    `L_D = mean_t mean_i CE(D(q_ti), t)`, `L_M = -L_D`.

    Example:
        >>> from gradalign.alignment.rows import TaskRows
        >>> rows = TaskRows(tf.ones([2, 1, 1]), tf.ones([2, 1], tf.bool))
        >>> scores = tf.constant([[[0.0, 0.0]], [[0.0, 0.0]]])
        >>> round(float(Reversal().discriminator_loss(scores, tf.eye(2)[:, None], rows)), 4)
        0.6931
    """

    reverses = True

    def discriminator_loss(self, scores: tf.Tensor, targets: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of the mean cross-entropy over a task's rows."""
        return rows.mean(cross_entropy(scores, targets))
