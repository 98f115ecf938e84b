"""Normalisation layers of Keras, right at second order.

Keras takes the variance from `tf.nn.moments`, which counts the mean as a constant of the differentiation. That leaves
the first derivative as it is, since deviations from a mean sum to zero, but not the second. The layers here keep the
mean's path; everything else, weights and their names, arguments and configs, is inherited from Keras.

Source: Ioffe and Szegedy 2015 (batch), Ba et al. 2016 (layer), Wu and He 2018 (group normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.normalization import at_least_float32
from gradalign.gradients.replicas import sum_over_replicas

__all__ = ["BatchNormalization", "GroupNormalization", "LayerNormalization"]


@keras.saving.register_keras_serializable(package="gradalign")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` whose gradient can be differentiated again; same arguments and weights.

    Statistics are taken in float32 or better under any dtype policy. Input and output have one shape, (B, ..., C).

    Example:
        >>> layer = LayerNormalization(epsilon=0.0)
        >>> layer(tf.constant([[1.0, 3.0]])).numpy().tolist()
        [[-1.0, 1.0]]
        >>> sorted(weight.name for weight in layer.weights)
        ['beta', 'gamma']

        A stock layer takes over config and weights, and the other way round:

        >>> stock = keras.layers.LayerNormalization.from_config(layer.get_config())
        >>> stock.build((None, 2))
        >>> stock.set_weights(layer.get_weights())
    """

    def call(self, inputs: Any) -> tf.Tensor:
        """Return `inputs` normalised over `axis`, in their shape."""
        x = at_least_float32(inputs)
        axes = [axis % x.shape.rank for axis in _as_list(self.axis)]
        if getattr(self, "rms_scaling", False):
            # Keras' deprecated mode: centred variance, inputs that are not centred, no offset.
            mean, offset = tf.zeros((), x.dtype), None
            _, variance = _moments(x, axes)
        else:
            mean, variance = _moments(x, axes)
            offset = _along(self.beta, x, axes)
        y = tf.nn.batch_normalization(x, mean, variance, offset, _along(self.gamma, x, axes), self.epsilon)
        return tf.cast(y, self.compute_dtype)


@keras.saving.register_keras_serializable(package="gradalign")
class GroupNormalization(keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization` whose gradient can be differentiated again; same arguments and weights.

    Statistics are taken in float32 or better under any dtype policy. Input and output have one shape, (B, ..., C).

    Example:
        >>> layer = GroupNormalization(groups=2, epsilon=0.0)
        >>> layer(tf.constant([[1.0, 3.0, 10.0, 30.0]])).numpy().tolist()
        [[-1.0, 1.0, -1.0, 1.0]]
    """

    def call(self, inputs: Any) -> tf.Tensor:
        """Return `inputs` normalised within each group of channels, in their shape."""
        x = at_least_float32(inputs)
        shape, axis = tf.shape(x), self.axis % x.shape.rank
        parts = [self.groups, x.shape[axis] // self.groups]
        # Static where it can be: XLA and the layers behind read the channels from the shape.
        sizes = [shape[i] if size is None else size for i, size in enumerate(x.shape)]
        grouped = tf.reshape(x, [*sizes[:axis], *parts, *sizes[axis + 1 :]])
        mean, variance = _moments(grouped, [i for i in range(1, grouped.shape.rank) if i != axis])
        scale, offset = (
            None if weight is None else tf.reshape(tf.cast(weight, x.dtype), [*parts, *[1] * (x.shape.rank - axis - 1)])
            for weight in (self.gamma, self.beta)
        )
        y = tf.nn.batch_normalization(grouped, mean, variance, offset, scale, self.epsilon)
        return tf.cast(tf.ensure_shape(tf.reshape(y, shape), x.shape), self.compute_dtype)


@keras.saving.register_keras_serializable(package="gradalign")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` whose gradient can be differentiated again; same arguments and weights.

    As in Keras: a layer that is frozen runs in inference mode, a mask leaves rows out of the statistics (which are then
    each replica's own), `synchronized=True` takes them over all replicas, and the moving statistics follow each
    training batch. Statistics are taken in float32 or better. Input and output have one shape, (B, ..., C).

    Raises:
        UserError: for `renorm=True`, whose corrections count as constants in the gradient by definition, so that there
            is no second derivative to be right.

    Example:
        >>> layer = BatchNormalization(momentum=0.5, epsilon=0.0)
        >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().tolist()
        [[-1.0], [1.0]]
        >>> layer.moving_mean.numpy().tolist(), layer.moving_variance.numpy().tolist()
        ([1.0], [1.0])
    """

    def build(self, input_shape: Any) -> None:
        """Create the weights, as in Keras."""
        if getattr(self, "renorm", False):
            raise UserError(
                f'BatchNormalization "{self.name}" was given renorm=True, whose corrections are constants in the '
                "gradient, so it has no right second derivative; use renorm=False."
            )
        super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """Return `inputs` normalised by the batch's statistics in training, by the moving ones otherwise.

        Args:
            inputs: floats (B, ..., C).
            training: the mode.
            mask: booleans, one dimension less than `inputs`; where False, a row takes no part in the statistics.
        """
        if mask is not None and len(mask.shape) != len(inputs.shape) - 1:
            raise UserError(
                f'BatchNormalization "{self.name}" takes a mask of one dimension less than its inputs; '
                f"received shapes {tuple(mask.shape)} and {tuple(inputs.shape)}."
            )
        x = at_least_float32(inputs)
        axis = self.axis % x.shape.rank
        if training and self.trainable:
            over = [i for i in range(x.shape.rank) if i != axis]
            mean, variance = _moments(x, over, self.synchronized) if mask is None else _masked_moments(x, over, mask)
            for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
                before = tf.cast(moving, now.dtype)
                moving.assign(before * self.momentum + tf.reshape(now, moving.shape) * (1.0 - self.momentum))
        else:
            mean, variance = _along(self.moving_mean, x, [axis]), _along(self.moving_variance, x, [axis])
        y = tf.nn.batch_normalization(
            x, mean, variance, _along(self.beta, x, [axis]), _along(self.gamma, x, [axis]), self.epsilon
        )
        return tf.cast(y, self.compute_dtype)


def _as_list(axis: Any) -> list[int]:
    return list(axis) if isinstance(axis, Sequence) else [axis]


def _along(weight: Any, x: tf.Tensor, axes: list[int]) -> tf.Tensor | None:
    """Return `weight` in the dtype of `x`, shaped to broadcast along `axes` of it; `None` for none."""
    if weight is None:
        return None
    return tf.reshape(tf.cast(weight, x.dtype), [x.shape[i] if i in axes else 1 for i in range(x.shape.rank)])


def _moments(x: tf.Tensor, axes: list[int], over_replicas: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance of `x` over `axes`, which stay as axes of size 1."""
    if not over_replicas:
        mean = tf.reduce_mean(x, axes, keepdims=True)
        return mean, tf.reduce_mean(tf.math.squared_difference(x, mean), axes, keepdims=True)
    # Sums and counts, so that replicas may have rows in any number; two passes, as E[x²] - E[x]² loses digits.
    count = sum_over_replicas(tf.reduce_sum(tf.ones_like(x), axes, keepdims=True))
    mean = tf.math.divide_no_nan(sum_over_replicas(tf.reduce_sum(x, axes, keepdims=True)), count)
    squares = tf.reduce_sum(tf.math.squared_difference(x, mean), axes, keepdims=True)
    return mean, tf.math.divide_no_nan(sum_over_replicas(squares), count)


def _masked_moments(x: tf.Tensor, axes: list[int], mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance over the rows where `mask` is True, with Keras' epsilon in the count."""
    kept = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(x))
    count = tf.reduce_sum(tf.cast(kept, x.dtype), axes, keepdims=True) + keras.config.epsilon()
    mean = tf.reduce_sum(tf.where(kept, x, tf.zeros_like(x)), axes, keepdims=True) / count
    # Safe before it is squared: a masked row may hold anything.
    deviation = tf.where(kept, x, mean) - mean
    return mean, tf.reduce_sum(tf.square(deviation), axes, keepdims=True) / count
