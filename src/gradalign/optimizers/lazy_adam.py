"""Adam for embedding tables: the rows of a batch move, all others wait."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.optimizers.arguments import not_negative, share_below_one
from gradalign.optimizers.row_wise import RowWiseOptimizer

__all__ = ["LazyAdam"]


@keras.saving.register_keras_serializable(package="gradalign")
class LazyAdam(RowWiseOptimizer):
    """Adam on the rows of a batch; moments of other rows neither decay nor move them.

    The bias correction counts the optimizer's steps, not a row's, so a row's first update is that of Keras' Adam; later
    ones differ where the row was left out between. Epsilon stands where Keras puts it.

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.

    Args:
        learning_rate: a number or a Keras schedule.
        beta_1: decay of the mean of gradients, in [0, 1).
        beta_2: decay of the mean of squares, in [0, 1).
        epsilon: added to the root.
        **kwargs: as in `RowWiseOptimizer`.

    Example:
        >>> table = keras.Variable([[1.0], [2.0], [3.0]])
        >>> optimizer = LazyAdam(0.1)
        >>> optimizer.apply([tf.IndexedSlices(tf.constant([[5.0], [5.0]]), tf.constant([1, 1]))], [table])
        >>> table.numpy().round(3).tolist()
        [[1.0], [1.9], [3.0]]
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        kind = type(self).__name__
        self.beta_1 = share_below_one(kind, "beta_1", beta_1)
        self.beta_2 = share_below_one(kind, "beta_2", beta_2)
        self.epsilon = not_negative(kind, "epsilon", epsilon)

    def initial_state(self) -> dict[str, tuple[float, bool]]:
        """Return the two moments, zero."""
        return {"momentum": (0.0, False), "velocity": (0.0, False)}

    def update(
        self, gradient: tf.Tensor, state: dict[str, tf.Tensor], learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return Adam's step for the rows of `gradient`."""
        dtype = gradient.dtype
        step = tf.cast(self.iterations + 1, dtype)
        beta_1, beta_2 = (tf.constant(beta, dtype) for beta in (self.beta_1, self.beta_2))
        momentum = state["momentum"] + (gradient - state["momentum"]) * (1 - beta_1)
        velocity = state["velocity"] + (tf.square(gradient) - state["velocity"]) * (1 - beta_2)
        rate = learning_rate * tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
        change = momentum * rate / (tf.sqrt(velocity) + tf.constant(self.epsilon, dtype))
        return change, {"momentum": momentum, "velocity": velocity}

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **own}
