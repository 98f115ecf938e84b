"""Alignments: `(grads, masks) -> scalar`, added to the task losses so that the tasks' gradients become alike.

>>> import tensorflow as tf
>>> alignment = AdversarialAlignment(weight=0.1, schedule=1.0)
>>> float(alignment({"click": tf.ones([4, 2]), "buy": -tf.ones([4, 2])})) > 0
True
"""

from gradalign.alignment.adversarial import AdversarialAlignment
from gradalign.alignment.base import Alignment
from gradalign.alignment.discriminators import mlp_discriminator
from gradalign.alignment.rows import TaskRows

__all__ = ["AdversarialAlignment", "Alignment", "TaskRows", "mlp_discriminator"]
