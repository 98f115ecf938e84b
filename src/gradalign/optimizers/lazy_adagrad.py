"""Adagrad for embedding tables: an accumulator for each entry, or one for each row."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.optimizers.arguments import not_negative
from gradalign.optimizers.row_wise import RowWiseOptimizer

__all__ = ["LazyAdagrad", "RowWiseAdagrad"]


class _Adagrad(RowWiseOptimizer):
    one_per_row = False

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        kind, start = type(self).__name__, initial_accumulator_value
        self.initial_accumulator_value = not_negative(kind, "initial_accumulator_value", start)
        self.epsilon = not_negative(kind, "epsilon", epsilon)

    def initial_state(self) -> dict[str, tuple[float, bool]]:
        """Return the accumulator of squares."""
        return {"accumulator": (self.initial_accumulator_value, self.one_per_row)}

    def update(
        self, gradient: tf.Tensor, state: dict[str, tf.Tensor], learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return Adagrad's step for the rows of `gradient`."""
        accumulator = state["accumulator"] + self.squares(gradient)
        change = learning_rate * gradient / tf.sqrt(accumulator + tf.constant(self.epsilon, gradient.dtype))
        return change, {"accumulator": accumulator}

    def squares(self, gradient: tf.Tensor) -> tf.Tensor:
        """Return what a step adds to the accumulator."""
        return tf.square(gradient)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {"initial_accumulator_value": self.initial_accumulator_value, "epsilon": self.epsilon}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="gradalign")
class LazyAdagrad(_Adagrad):
    """Adagrad that reads and writes the rows of a batch only; equal to Keras' Adagrad in every row.

    Duchi, Hazan, Singer, "Adaptive Subgradient Methods", JMLR 2011, figure 1.

    Args:
        learning_rate: a number or a Keras schedule.
        initial_accumulator_value: what the sums of squares start from, 0 or more.
        epsilon: added under the root.
        **kwargs: as in `RowWiseOptimizer`.

    Example:
        >>> table = keras.Variable([[1.0], [2.0]])
        >>> optimizer = LazyAdagrad(0.5, initial_accumulator_value=0.0)
        >>> optimizer.apply([tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([1]))], [table])
        >>> table.numpy().round(4).tolist()
        [[1.0], [1.5]]
    """


@keras.saving.register_keras_serializable(package="gradalign")
class RowWiseAdagrad(_Adagrad):
    """Adagrad with one accumulator a row: the mean of the squares of the row's gradient; a table's state is one column.

    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019
    (arXiv 1906.00091), as its open implementation trains embedding tables. Vectors have an accumulator for each entry.

    Args:
        learning_rate: a number or a Keras schedule.
        initial_accumulator_value: what the means of squares start from, 0 or more.
        epsilon: added under the root.
        **kwargs: as in `RowWiseOptimizer`.

    Example:
        >>> table = keras.Variable([[1.0, 1.0], [2.0, 2.0]])
        >>> optimizer = RowWiseAdagrad(0.5, initial_accumulator_value=0.0)
        >>> optimizer.apply([tf.IndexedSlices(tf.constant([[1.0, 7.0]]), tf.constant([1]))], [table])  # mean square 25
        >>> table.numpy().round(4).tolist(), tuple(optimizer.slots["accumulator"][0].shape)
        ([[1.0, 1.0], [1.9, 1.3]], (2,))
    """

    one_per_row = True

    def squares(self, gradient: tf.Tensor) -> tf.Tensor:
        """Return the mean square of each row, (rows, 1, ...)."""
        if gradient.shape.rank < 2:
            return tf.square(gradient)
        return tf.reduce_mean(tf.square(gradient), axis=list(range(1, gradient.shape.rank)), keepdims=True)
