"""A dense layer whose kernel is divided by its largest singular value.

Miyato et al., "Spectral Normalization for Generative Adversarial Networks", ICLR 2018, eq. 8 and algorithm 1, one power
iteration a training pass. Keras' own `SpectralNormalization` writes the divided kernel back into the variable, so that
the optimizer descends a loss of other weights than the ones that it moves, and its gradient lacks the divisor's part
(eq. 11 and 12). Here the divided kernel is a function of the variable, as in the paper.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["SpectralDense"]


@keras.saving.register_keras_serializable(package="gradalign")
class SpectralDense(keras.layers.Dense):
    """`keras.layers.Dense` with the kernel `W / sigma(W)`.

    The direction of the largest singular value is a variable, right from the start and saved with the weights; each
    pass with `training=True` moves it by one power iteration.

    Args:
        units: width of the output.
        activation: as of `keras.layers.Dense`.

    Example:
        >>> layer = SpectralDense(2)
        >>> layer.build((None, 2))
        >>> layer.set_weights([np.diag([3.0, 1.5]), np.zeros(2), np.array([1.0, 0.0])])
        >>> layer(tf.constant([[1.0, 1.0]])).numpy().tolist()
        [[1.0, 0.5]]
    """

    def build(self, input_shape: Any) -> None:
        """Create the weights, and the direction in which the kernel stretches most."""
        super().build(input_shape)
        with tf.init_scope():
            kernel = keras.ops.convert_to_numpy(self.kernel)
        _, _, right = np.linalg.svd(np.asarray(kernel, np.float64), full_matrices=False)
        self.direction = self.add_weight(
            name="direction",
            shape=(self.units,),
            initializer=keras.initializers.Constant(right[0].astype(kernel.dtype)),
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )

    def save_own_variables(self, store: Any) -> None:
        """Save the direction too; `keras.layers.Dense` knows its kernel and bias alone."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        keras.layers.Layer.load_own_variables(self, store)

    def divided_kernel(self, training: bool = False) -> tf.Tensor:
        """Return `W / sigma(W)`, of the kernel's shape; with `training` the direction moves first."""
        kernel = tf.convert_to_tensor(self.kernel)
        fixed = tf.stop_gradient(kernel)
        direction = tf.convert_to_tensor(self.direction)
        if training:
            # Backward and forward once; a kernel of zeros has no direction and leaves it as it is.
            moved = tf.linalg.matvec(fixed, tf.linalg.matvec(fixed, direction), transpose_a=True)
            length = tf.norm(moved)
            direction = tf.where(length > 0, tf.math.divide_no_nan(moved, length), direction)
            self.direction.assign(direction)
        direction = tf.stop_gradient(direction)
        stretched = tf.linalg.matvec(fixed, direction)
        left = tf.math.divide_no_nan(stretched, tf.norm(stretched))
        sigma = tf.reduce_sum(left * tf.linalg.matvec(kernel, direction))
        return kernel / tf.where(tf.equal(sigma, 0), tf.ones_like(sigma), sigma)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return `activation(inputs W / sigma(W) + b)`."""
        x = tf.matmul(inputs, self.divided_kernel(bool(training)))
        if self.use_bias:
            x = x + tf.convert_to_tensor(self.bias)
        return self.activation(x) if self.activation is not None else x
