"""Task gradients as the products that they are, so that what reads them can work at the width of a hidden layer.

The gradient of a tower at its input (B, D) is `left kernelᵀ`: `left` (B, H) is the gradient at the sums of its first
hidden layer, `kernel` (D, H) that layer's weights. Of a piecewise-linear tower it is `scale ∘ (left kernelᵀ)`: `scale`
(B, 1) is the derivative of the loss by the logit, and `left` that of the logit. A product with a matrix (D, k) is then
`scale ∘ (left (kernelᵀ matrix))`: with H below D that is less work, and the gradient itself, which is as large as the
batch of embeddings, need not be written or read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gradalign.gradients.normalization import largest_entries
from gradalign.gradients.replicas import sum_over_replicas
from gradalign.gradients.reversal import reverse_gradient

__all__ = ["Factors", "Note", "normalize_factors", "noted_product"]


@dataclasses.dataclass(frozen=True)
class Factors:
    """A task's gradient rows, `scale ∘ inner` with `inner = left kernelᵀ`; float32 or float64.

    Attributes:
        scale: (B, 1); where it is 0, so is the row, whatever the others hold.
        left: (B, H).
        kernel: (D, H).
        inner: (B, D).
    """

    scale: tf.Tensor
    left: tf.Tensor
    kernel: tf.Tensor
    inner: tf.Tensor

    def times(self, matrix: Any) -> tf.Tensor:
        """Return the rows times `matrix` (D, k), (B, k).

        Example:
            >>> left, kernel = tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
            >>> factors = Factors(tf.constant([[2.0]]), left, kernel, left @ tf.transpose(kernel))
            >>> factors.times([[1.0], [1.0], [0.0]]).numpy().tolist()
            [[10.0]]
        """
        product = tf.matmul(self.left, tf.matmul(self.kernel, matrix, transpose_a=True))
        return tf.math.multiply_no_nan(product, self.scale)

    def reversed(self, strength: Any) -> Factors:
        """Return the same, with gradients that pass back multiplied by `-strength`."""
        # Each derivative of a product goes through one of its factors.
        return Factors(*(reverse_gradient(getattr(self, f.name), strength) for f in dataclasses.fields(self)))

    def nonzero_rows(self) -> tf.Tensor:
        """Return booleans (B,), False where a row is zero throughout."""
        return tf.not_equal(self.scale[:, 0] * largest_entries(self.inner), 0)


Note = Callable[[tf.Tensor, Factors], None]


def noted_product(x: tf.Tensor, kernel: tf.Tensor, note: Note) -> tf.Tensor:
    """Return `x @ kernel`, (B, D) times (D, H); `note` is called with each gradient at `x` and with its factors.

    Example:
        >>> x, noted = tf.ones([1, 2]), []
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = noted_product(x, tf.ones([2, 3]), lambda gradient, factors: noted.append(factors))
        >>> tape.gradient(y, x).numpy().tolist(), noted[0].left.shape
        ([[3.0, 3.0]], TensorShape([1, 3]))
    """

    @tf.custom_gradient
    def product(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        def backward(left: tf.Tensor) -> list[tf.Tensor]:
            gradient = tf.matmul(left, kernel, transpose_b=True)
            note(gradient, Factors(tf.ones_like(left[:, :1]), left, kernel, gradient))
            return [gradient, tf.matmul(x, left, transpose_a=True)]

        return tf.matmul(x, kernel), backward

    return product(x, kernel)


def normalize_factors(factors: Factors, kept: tf.Tensor, method: str) -> Factors:
    """Return the rows normalised as `normalize_rows` does it; zero where `kept` (B,) is False.

    Args:
        factors: the rows.
        kept: booleans (B,), False at least where a row is zero throughout.
        method: `"l2"`, `"batch"` or `"none"`, as in `normalize`.
    """
    scale = factors.scale[:, 0]
    if method == "l2":
        length = tf.sqrt(_squared_lengths(factors.inner, kept))
        scale = tf.sign(scale) / tf.cast(tf.where(kept, length, tf.ones_like(length)), scale.dtype)
    elif method == "batch":
        squared = tf.square(tf.cast(scale, tf.float64)) * _squared_lengths(factors.inner, kept)
        total = sum_over_replicas(tf.reduce_sum(tf.where(kept, squared, tf.zeros_like(squared))))
        count = sum_over_replicas(tf.reduce_sum(tf.cast(kept, tf.float64)))
        mean = tf.where(tf.equal(total, 0), tf.ones_like(total), total) / tf.maximum(count, 1.0)
        # In float64: the scale of a batch is beyond the squares of float32 at 1e-30, and so is what it multiplies.
        scale = tf.cast(tf.cast(scale, tf.float64) * tf.math.rsqrt(mean), scale.dtype)
    return dataclasses.replace(factors, scale=tf.where(kept, scale, tf.zeros_like(scale))[:, None])


def _squared_lengths(rows: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """Return the squared lengths of the `kept` rows of (B, D), (B,), in float64, and 1 for the others."""

    @tf.custom_gradient
    def squared(rows: tf.Tensor) -> Any:
        largest = largest_entries(rows)
        largest = tf.where(kept & (largest > 0), largest, tf.ones_like(largest))
        fits = (tf.reduce_min(largest) > 1e-15) & (tf.reduce_max(largest) < 1e15)

        def scaled() -> tf.Tensor:
            of_one = tf.reduce_sum(tf.square(rows / largest[:, None]), axis=-1)
            return tf.cast(of_one, tf.float64) * tf.square(tf.cast(largest, tf.float64))

        # One pass over the rows where no square can vanish. NaN fits nowhere and passes through.
        found = tf.cond(fits, lambda: tf.cast(tf.reduce_sum(tf.square(rows), axis=-1), tf.float64), scaled)
        found = tf.where(kept, found, tf.ones_like(found))

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return tf.math.multiply_no_nan(rows, tf.cast(2.0 * upstream, rows.dtype)[:, None])

        return found, backward

    return squared(rows)
