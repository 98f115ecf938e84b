"""The contract of an adversary's objective: what the discriminator minimises, and what the model does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from gradalign.alignment.rows import TaskRows
from gradalign.errors import UserError

__all__ = ["Objective", "cross_entropy"]


class Objective:
    """What the two sides of an adversarial alignment minimise, as functions of the discriminator's scores.

    A subclass implements `discriminator_loss` and, unless it reverses, `model_loss`; both return this replica's part of
    a scalar over the global batch, differentiable, 0 where there are no rows.

    Attributes:
        reverses: the model ascends the discriminator's loss, so one pass with a gradient reversal serves both sides.
            Else the discriminator runs twice: on stopped gradients for its own loss, with stopped weights for the
            model's.
        takes_targets: the discriminator's loss looks at `targets`, so labels of tasks can be smoothed.
    """

    reverses = False
    takes_targets = True

    def discriminator_loss(self, scores: tf.Tensor, targets: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return what the discriminator minimises.

        Args:
            scores: (T, B, ..., T), float32 or float64: the first axis is the task that a row comes from, the last one
                the discriminator's scores in task order.
            targets: (T, 1, ..., T): the scores' targets by task; one-hot, or smoothed.
            rows: which rows count, and how much.
        """
        raise UserError(f"{type(self).__name__} does not implement discriminator_loss(scores, targets, rows).")

    def model_loss(self, scores: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return what the model minimises; arguments as for `discriminator_loss`."""
        raise UserError(f"{type(self).__name__} does not implement model_loss(scores, rows).")

    def penalty(self, judge: Callable[[tf.Tensor], tf.Tensor], rows: TaskRows, step: Any) -> tf.Tensor | None:
        """Return what the discriminator pays for its shape on top of its loss; `None` for nothing.

        Args:
            judge: takes gradients (T, B, ..., D) and returns the discriminator's scores (T, B, ..., T).
            rows: the rows, with stopped gradients.
            step: the optimizer step, an integer scalar, for what is drawn at random.
        """
        return None

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Objective:
        """Make an objective of what `get_config` returned."""
        return cls(**config)


def cross_entropy(scores: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return `-sum_u targets_u log softmax(scores)_u`, without the last axis.

    Example:
        >>> round(float(cross_entropy(tf.constant([0.0, 0.0]), tf.constant([1.0, 0.0]))), 4)
        0.6931
    """
    return -tf.reduce_sum(targets * tf.nn.log_softmax(scores), axis=-1)
