"""A piecewise-linear tower's logit and that logit's gradient, from one pass forward and one pass back.

With `h_0 = x`, `a_l = h_{l-1} W_l + c_l`, `h_l = m_l ∘ a_l` and the logit `z = a_L` of shape (B, 1), where `m_l` is the
slope of the activation times the dropout's mask, the gradient is

    J_L = 1,    J_l = m_l ∘ (J_{l+1} W_{l+1}ᵀ),    dz/dx = J_1 W_1ᵀ

`m_l` is constant but at the kinks, so every gradient of a loss of `z` is a scaling of the rows of the one `dz/dx`, and
the pullback of cotangents `b` on `z` and `U` on `dz/dx` is

    v_0 = U,    u_l = v_{l-1} W_l,    v_l = m_l ∘ u_l
    dW_l = (b ∘ h_{l-1} + v_{l-1})ᵀ J_l,    dc_l = J_lᵀ b,    dx = b ∘ dz/dx

That is four matrix products a layer; a step without second derivatives takes three, nested tapes take six. Where only
some rows' gradients are differentiated again, `U`, `u` and `v` have these rows only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.factors import Factors, Note
from gradalign.gradients.sparse import gather_densely

__all__ = ["Part", "logit_with_gradient"]

Dropout = Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Part:
    """A piece of a tower's input.

    Attributes:
        tensor: (B, D).
        followed: whether the gradient at it is differentiated again. Where not, its way into the weights is left out of
            the second order, where it would only carry zeros.
        leaf: (n, D), the same at the sampled rows: what gradients are taken at instead, where rows are sampled.
    """

    tensor: tf.Tensor
    followed: bool = True
    leaf: tf.Tensor | None = None


def logit_with_gradient(
    parts: Sequence[Part],
    kernels: Sequence[tf.Tensor],
    biases: Sequence[tf.Tensor],
    slopes: Sequence[float | tf.Tensor],
    dropouts: Sequence[Dropout | None],
    rows: tf.Tensor | None = None,
    note: Note | None = None,
) -> tf.Tensor:
    """Return the logits of a piecewise-linear tower, with gradients that are cheap to differentiate again.

    Args:
        parts: the tower's input, which counts as joined along the last axis; at least one part is followed.
        kernels: of the L dense layers, (D_{l-1}, D_l), the last one with one column.
        biases: of the same layers, (D_l,).
        slopes: of the L - 1 activations below zero: 0 for ReLU, 1 for none, or a trained tensor (D_l,) for PReLU.
        dropouts: for each activation `x -> x` times mask and scale, or `None`.
        rows: numbers (n,) of the sampled rows; then every part that is followed has a leaf.
        note: called with each gradient of a loss at a part that is followed and with its factors, both of the sampled
            rows where rows are sampled.

    Returns:
        (B, 1), in the dtype of the parts, equal to what the layers give one after the other.

    Raises:
        UserError: when a third derivative is asked for.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, -4.0]])
        >>> kernels = [tf.constant([[1.0, 0.0], [0.0, 1.0]]), tf.constant([[1.0], [10.0]])]
        >>> biases = [tf.zeros(2), tf.zeros(1)]
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     z = logit_with_gradient([Part(x)], kernels, biases, [0.0], [None])
        >>> z.numpy().tolist(), tape.gradient(z, x).numpy().tolist()
        ([[21.0], [3.0]], [[1.0, 10.0], [1.0, 0.0]])
    """
    widths = [part.tensor.shape[-1] for part in parts]
    first = tf.split(kernels[0], widths, axis=0) if len(parts) > 1 else [kernels[0]]
    given = [first, list(kernels[1:]), list(biases), [slope for slope in slopes if tf.is_tensor(slope)]]
    gradients: list[tf.Tensor] = []

    # The way from the logit to the parts is `_linked`'s, at both orders. Without the stop a tape would also find the
    # one through the products below, whenever it watches the parts and none of the weights.
    fixed = [tf.stop_gradient(part.tensor) for part in parts]

    @tf.custom_gradient
    def logit(*flat: tf.Tensor) -> Any:
        first, kernels, biases, trained = tf.nest.pack_sequence_as(given, flat)
        passes = _Passes(fixed, first, kernels, biases, _filled(slopes, trained), dropouts, rows)
        gradients.extend(passes.gradients())

        def backward(b: tf.Tensor, *upstream: tf.Tensor) -> list[tf.Tensor]:
            at = iter(upstream)
            of_parts = [next(at) if part.followed else None for part in parts]
            return _not_thrice(passes.pullback(b, of_parts, next(at, None)))

        followed = [passes.at_rows(g) for g, part in zip(gradients, parts, strict=True) if part.followed]
        return (passes.logit, *followed, *([] if note is None else [passes.at_rows(passes.j[0])])), backward

    z, *others = logit(*tf.nest.flatten(given))
    left = None if note is None else others[-1]
    at = iter(others)
    for part, gradient, kernel in zip(parts, gradients, first, strict=True):
        followed = next(at) if part.followed else None
        if followed is None or rows is not None:
            z = _linked(z, part.tensor, tf.stop_gradient(gradient))
        if followed is not None:
            told = None if note is None else functools.partial(_tell, note, left, kernel, followed)
            z = _linked(z, part.tensor if part.leaf is None else part.leaf, followed, rows, told)
    return z


def _filled(slopes: Sequence[float | tf.Tensor], trained: Sequence[tf.Tensor]) -> list[float | tf.Tensor]:
    """Return `slopes` with the tensors among them replaced, in order."""
    rest = iter(trained)
    return [next(rest) if tf.is_tensor(slope) else slope for slope in slopes]


def _tell(
    note: Note, left: tf.Tensor, kernel: tf.Tensor, inner: tf.Tensor, gradient: tf.Tensor, scale: tf.Tensor
) -> None:
    note(gradient, Factors(scale, left, kernel, inner))


def _linked(
    z: tf.Tensor, x: tf.Tensor, gradient: tf.Tensor, rows: tf.Tensor | None = None, told: Any = None
) -> tf.Tensor:
    """Return `z` (B, 1) as a function of `x` too, whose gradient is `gradient`: (B, D), or at `rows` (n, D).

    `told` is called with each gradient of a loss at `x`, and with the loss's derivative by `z`.
    """

    @tf.custom_gradient
    def link(z: tf.Tensor, _x: tf.Tensor, gradient: tf.Tensor) -> Any:
        def backward(dz: tf.Tensor) -> list[Any]:
            of_rows = dz if rows is None else gather_densely(dz, rows)
            at_x = of_rows * gradient
            if told is not None:
                told(at_x, of_rows)
            return [dz, at_x, None]

        return tf.identity(z), backward

    return link(z, x, gradient)


def _not_thrice(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the gradients, which raise when they are differentiated: what they are made of is not recorded."""

    @tf.custom_gradient
    def twice(*values: tf.Tensor) -> Any:
        def backward(*_: tf.Tensor) -> Any:
            raise UserError(
                "A Tower's fast path has no third derivative: give the towers fast=False to go on to any order."
            )

        return [tf.identity(value) for value in values], backward

    return list(twice(*gradients))


class _Passes:
    """The two passes of a tower, and what their pullback needs of them."""

    def __init__(
        self,
        parts: Sequence[tf.Tensor],
        first: list[tf.Tensor],
        kernels: list[tf.Tensor],
        biases: list[tf.Tensor],
        slopes: Sequence[float | tf.Tensor],
        dropouts: Sequence[Dropout | None],
        rows: tf.Tensor | None,
    ) -> None:
        self.parts, self.first, self.kernels, self.rows = parts, first, kernels, rows
        a = tf.nn.bias_add(_sum([x @ w for x, w in zip(parts, first, strict=True)]), biases[0])
        self.inner: list[tf.Tensor] = []  # h_1 ... h_{L-1}
        self.masks: list[tf.Tensor | None] = []  # m_1 ... m_{L-1}; None for ones
        self.below: list[tf.Tensor | None] = []  # of trained slopes, where they act, dropout's scale included
        self.sums: list[tf.Tensor] = []  # a_1 ... a_{L-1}
        for slope, dropout, kernel, bias in zip(slopes, dropouts, kernels, biases[1:], strict=True):
            h, mask, below = _activated(a, slope, dropout)
            self.inner.append(h)
            self.masks.append(mask)
            self.below.append(below)
            self.sums.append(a)
            a = tf.nn.bias_add(h @ kernel, bias)
        self.logit = a

    def at_rows(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sampled rows of `value`, or all of it."""
        return value if self.rows is None else tf.gather(value, self.rows)

    def gradients(self) -> list[tf.Tensor]:
        """Return dz/dx at each part, (B, D_i)."""
        j = tf.ones_like(self.logit)
        self.j = [j]  # J_1 ... J_L, built from the end
        self.q: list[tf.Tensor] = []  # J_{l+1} W_{l+1}ᵀ for l = 1 ... L - 1
        for kernel, mask in zip(reversed(self.kernels), reversed(self.masks), strict=True):
            q = _times_transposed(j, kernel)
            j = q if mask is None else q * mask
            self.j.insert(0, j)
            self.q.insert(0, q)
        return [_times_transposed(j, w) for w in self.first]

    def pullback(
        self, b: tf.Tensor, upstream: Sequence[tf.Tensor | None], of_left: tf.Tensor | None
    ) -> list[tf.Tensor]:
        """Return the cotangents of first kernels, other kernels, biases and trained slopes, in this order.

        Args:
            b: cotangent of the logit.
            upstream: of the gradient at each part; `None` where that is not followed.
            of_left: of J_1 at the sampled rows, where it was returned.
        """
        first = [self._kernel_gradient(b, x, v, self.j[0]) for x, v in zip(self.parts, upstream, strict=True)]
        u = _sum([v @ w for v, w in zip(upstream, self.first, strict=True) if v is not None])
        u = u if of_left is None else u + of_left
        kernels, trained = [], []
        for i, (kernel, mask, h) in enumerate(zip(self.kernels, self.masks, self.inner, strict=True)):
            below = self.below[i]
            if below is not None:
                acting = below * self.q[i]
                of_logit = tf.reduce_sum(b * self.sums[i] * acting, axis=0)
                trained.append(of_logit + tf.reduce_sum(u * self.at_rows(acting), axis=0))
            v = u if mask is None else u * self.at_rows(mask)
            kernels.append(self._kernel_gradient(b, h, v, self.j[i + 1]))
            if i + 1 < len(self.kernels):
                u = v @ kernel
        biases = [tf.squeeze(tf.matmul(j, b, transpose_a=True), axis=-1) for j in self.j]
        return [*first, *kernels, *biases, *trained]

    def _kernel_gradient(self, b: tf.Tensor, h: tf.Tensor, v: tf.Tensor | None, j: tf.Tensor) -> tf.Tensor:
        """Return `(b ∘ h + v)ᵀ j`, in one product where `v` has all rows."""
        if v is not None and self.rows is None:
            return tf.matmul(b * h + v, j, transpose_a=True)
        of_logit = tf.matmul(h, b * j, transpose_a=True)
        return of_logit if v is None else of_logit + tf.matmul(v, self.at_rows(j), transpose_a=True)


def _activated(
    a: tf.Tensor, slope: float | tf.Tensor, dropout: Dropout | None
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
    """Return activation of `a`, its slope, and where a trained slope acts; dropout's mask and scale are in each."""
    if tf.is_tensor(slope):
        below = tf.cast(a < 0, a.dtype)
        mask = tf.cast(a > 0, a.dtype) + slope * below
        if dropout is not None:
            scale = dropout(tf.ones_like(a))
            mask, below = mask * scale, below * scale
        return a * mask, mask, below
    if slope == 1.0:
        if dropout is None:
            return a, None, None
        mask = dropout(tf.ones_like(a))
        return a * mask, mask, None
    h = tf.nn.relu(a) if slope == 0.0 else tf.nn.leaky_relu(a, slope)
    mask = tf.cast(a > 0, a.dtype)
    if slope != 0.0:
        mask += slope * (1.0 - mask)
    if dropout is None:
        return h, mask, None
    scale = dropout(tf.ones_like(a))
    return h * scale, mask * scale, None


def _times_transposed(j: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return `j kernelᵀ`; a kernel of one column needs no matrix product."""
    return j * tf.transpose(kernel) if kernel.shape[-1] == 1 else tf.matmul(j, kernel, transpose_b=True)


def _sum(terms: list[tf.Tensor]) -> tf.Tensor:
    return terms[0] if len(terms) == 1 else tf.add_n(terms)
