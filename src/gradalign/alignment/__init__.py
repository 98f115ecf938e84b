"""Alignments: `(grads, masks) -> scalar`, added to the task losses so that the tasks' gradients become alike.

>>> import tensorflow as tf
>>> alignment = AdversarialAlignment(weight=0.1, schedule=1.0)
>>> float(alignment({"click": tf.ones([4, 2]), "buy": -tf.ones([4, 2])})) > 0
True
"""

from gradalign.alignment.adversarial import AdversarialAlignment
from gradalign.alignment.base import Alignment
from gradalign.alignment.cosine import CosineAlignment
from gradalign.alignment.direct import DirectAlignment
from gradalign.alignment.discriminators import mlp_discriminator
from gradalign.alignment.great import GREATAlignment
from gradalign.alignment.mmd import MMDAlignment
from gradalign.alignment.moments import MomentAlignment
from gradalign.alignment.objectives import Confusion, LeastSquares, NonSaturating, Objective, Reversal, Wasserstein
from gradalign.alignment.rows import TaskRows
from gradalign.alignment.spectral import SpectralDense

__all__ = [
    "AdversarialAlignment",
    "Alignment",
    "Confusion",
    "CosineAlignment",
    "DirectAlignment",
    "GREATAlignment",
    "LeastSquares",
    "MMDAlignment",
    "MomentAlignment",
    "NonSaturating",
    "Objective",
    "Reversal",
    "SpectralDense",
    "TaskRows",
    "Wasserstein",
    "mlp_discriminator",
]
