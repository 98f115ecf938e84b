"""Gradient reversal (Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 2016, section 4.1, eq. 17).

Forward the identity, backward `-strength` times the gradient. Of order n: the n-th derivative of `f(R(x))` is
`(-strength)^n f^(n)(x)`, because the gradient is itself made of ordinary differentiable operations.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.errors import UserError

__all__ = ["GradientReversal", "reverse_gradient", "with_gradient_of"]


def reverse_gradient(x: Any, strength: Any) -> tf.Tensor:
    """Return `x` unchanged; gradients that pass back through it are multiplied by `-strength`.

    Args:
        x: float tensor of any shape.
        strength: number, scalar tensor or scalar variable, not negative. It gets no gradient.

    Returns:
        A tensor equal to `x`, of the same shape and dtype.

    Raises:
        UserError: where `x` is not a float tensor, or `strength` is neither a tensor nor a finite number of 0 or more.

    Example:
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = reverse_gradient(x, 0.5) ** 2
        >>> float(tape.gradient(y, x))
        -3.0
    """
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        raise UserError(
            f"reverse_gradient takes a float tensor, since only those have gradients; received {x.dtype.name}."
        )
    _check_strength(strength)
    # A number goes straight to the dtype of `x`: by way of float32, 0.3 would be off by 1e-8 in float64.
    number = isinstance(strength, (int, float, np.number))
    factor = tf.constant(float(strength), x.dtype) if number else tf.cast(tf.convert_to_tensor(strength), x.dtype)
    factor = tf.stop_gradient(-factor)

    # The decorated function takes its tensor positionally: with keywords only, TensorFlow ignores a custom gradient.
    @tf.custom_gradient
    def reverse(value: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def backward(upstream: Any) -> Any:
            if isinstance(upstream, tf.IndexedSlices):
                return tf.IndexedSlices(factor * upstream.values, upstream.indices, upstream.dense_shape)
            return factor * upstream

        return tf.identity(value), backward

    return reverse(x)


def with_gradient_of(value: tf.Tensor, loss: tf.Tensor, strength: Any) -> tf.Tensor:
    """Return `value` with its own gradient and, on top, `strength` times that of `loss`.

    Args:
        value: a tensor; stop its gradient where only that of `loss` is wanted.
        loss: a tensor of its shape, finite.
        strength: a scalar tensor; it gets no gradient.

    Example:
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = with_gradient_of(tf.constant(5.0), x ** 2, 0.5)
        >>> float(y), float(tape.gradient(y, x))
        (5.0, 3.0)
    """
    return value + tf.cast(tf.stop_gradient(strength), value.dtype) * tf.cast(
        loss - tf.stop_gradient(loss), value.dtype
    )


def _check_strength(strength: Any) -> None:
    if tf.is_tensor(strength) or isinstance(strength, keras.Variable):
        return  # Its value may not be known yet.
    if not isinstance(strength, numbers.Real) or not math.isfinite(strength) or strength < 0:
        raise UserError(f"The strength of a gradient reversal is a finite number, 0 or more; received {strength!r}.")


@keras.saving.register_keras_serializable(package="gradalign")
class GradientReversal(keras.layers.Layer):
    """`reverse_gradient` as a layer, whose strength is a variable.

    Assigning the strength takes effect in functions traced before, without a new trace; it is saved with the model.

    Args:
        strength: initial strength, a finite number, 0 or more.

    Raises:
        UserError: where `strength` is negative or not finite.

    Example:
        >>> layer = GradientReversal(0.5)
        >>> x = tf.constant([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = tf.reduce_sum(layer(x))
        >>> tape.gradient(y, x).numpy().tolist()
        [-0.5, -0.5]
        >>> layer.strength = 0.25
        >>> float(layer.strength)
        0.25
    """

    def __init__(self, strength: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_strength(strength)
        self.supports_masking = True
        self._strength = self.add_weight(
            name="strength",
            shape=(),
            initializer=keras.initializers.Constant(np.float64(strength)),
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )
        self.built = True

    @property
    def strength(self) -> Any:
        """The strength, a scalar variable; assigning a number writes it."""
        return self._strength

    @strength.setter
    def strength(self, value: Any) -> None:
        _check_strength(value)
        self._strength.assign(value)

    def call(self, x: Any) -> Any:
        """Return `x` unchanged, with the reversal behind it."""
        return reverse_gradient(x, self._strength)

    def compute_output_shape(self, x_shape: Any) -> Any:
        """Return the shape of the input, which is that of the output."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, with the strength as it is now."""
        return {**super().get_config(), "strength": float(self._strength.value.numpy())}
