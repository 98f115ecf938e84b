"""The model makes the discriminator undecided: its probabilities go towards uniform.

Tzeng et al., "Simultaneous Deep Transfer Across Domains and Tasks", ICCV 2015, eq. 3 (the discriminator's
cross-entropy) and eq. 4 (the confusion loss, the cross-entropy between the uniform distribution over domains and the
prediction). A reversal that goes too far has tasks exchanged, which are told apart as well as before; uniform is where
it ends here.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from gradalign.alignment.objectives.base import Objective, cross_entropy
from gradalign.alignment.rows import TaskRows

__all__ = ["Confusion"]


@keras.saving.register_keras_serializable(package="gradalign")
class Confusion(Objective):
    """Cross-entropy for the discriminator; the model minimises `-1/T sum_u log D_u`, at least `log T`.

    Example:
        >>> from gradalign.alignment.rows import TaskRows
        >>> rows = TaskRows(tf.ones([2, 1, 1]), tf.ones([2, 1], tf.bool))
        >>> round(float(Confusion().model_loss(tf.zeros([2, 1, 2]), rows)), 4)
        0.6931
    """

    def discriminator_loss(self, scores: tf.Tensor, targets: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of the mean cross-entropy over a task's rows."""
        return rows.mean(cross_entropy(scores, targets))

    def model_loss(self, scores: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return the mean over tasks of the mean cross-entropy between uniform and the prediction."""
        return rows.mean(-tf.reduce_mean(tf.nn.log_softmax(scores), axis=-1))
