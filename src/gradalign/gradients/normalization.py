"""Normalisation of task gradients: `N(g)` in docs/design.md, section 1.

`"l2"` is the per-row division by the Euclidean length of ASTMT (Maninis et al., CVPR 2019), without its epsilon of
1e-10: a gradient keeps unit length however small it is, and a row of zeros stays zero and sends zero back, at every
order.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.replicas import sum_over_replicas

__all__ = ["METHODS", "PER", "at_least_float32", "largest_entries", "nonzero_rows", "normalize", "normalize_rows"]

METHODS = ("l2", "batch", "none")
PER = ("row", "position")


def normalize(g: Any, method: str = "l2", *, mask: Any = None, per: str = "row") -> tf.Tensor:
    """Return the gradients `g` normalised, in float32 or better, differentiable to any order.

    Args:
        g: gradients, (B, D) or of higher rank, (B, ..., C).
        method: `"l2"`, each row by its own length; `"batch"`, all rows by the root mean square of the lengths of the
            labelled rows that are not zero, over all replicas; `"none"`, as they are.
        mask: optional booleans (B,), or one for each row; rows that are False become zero and do not count.
        per: what a row is: `"row"`, everything behind the first axis; `"position"`, the last axis (channels).

    Returns:
        A tensor of the shape of `g`; float16 and bfloat16 come back as float32. Rows of zeros stay zero and get zero
        gradient. Accurate for row lengths from 1e-30 to 1e30 in float32.

    Raises:
        UserError: for an unknown `method` or `per`, or a `g` of rank 0 or 1.

    Example:
        >>> g = tf.constant([[3.0, 4.0], [0.0, 0.0], [0.0, 2e-30]])
        >>> normalize(g).numpy().round(3).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0], [0.0, 1.0]]
        >>> normalize(tf.constant([[3.0, 0.0], [0.0, 4.0]]), "batch").numpy().round(3).tolist()
        [[0.8489999771118164, 0.0], [0.0, 1.13100004196167]]
    """
    if method not in METHODS:
        raise UserError(f"normalize knows the methods {', '.join(map(repr, METHODS))}; received {method!r}.")
    if per not in PER:
        raise UserError(f"A row of gradients is one per {' or '.join(map(repr, PER))}; received per={per!r}.")
    g = at_least_float32(tf.convert_to_tensor(g))
    if g.shape.rank is None or g.shape.rank < 2:
        raise UserError(f"normalize takes gradients with rows, (B, D) or (B, ..., C); received shape {g.shape}.")
    shape = tf.shape(g)
    rows = tf.reshape(g, [shape[0], -1]) if per == "row" and g.shape.rank > 2 else g
    kept = nonzero_rows(rows)
    if mask is not None:
        kept = tf.logical_and(kept, _as_rows(mask, kept))
    rows = normalize_rows(rows, kept, method)
    return tf.reshape(rows, shape) if rows.shape.rank != g.shape.rank else rows


def normalize_rows(rows: tf.Tensor, kept: tf.Tensor, method: str) -> tf.Tensor:
    """Return `rows` (..., D) of float32 or better normalised; zero where `kept` (...,) is False, whatever they hold.

    Args:
        rows: gradients.
        kept: booleans, False at least where a row is zero throughout.
        method: as in `normalize`.
    """
    if method == "none":
        return tf.where(kept[..., None], rows, tf.zeros_like(rows))
    return (_by_row if method == "l2" else _by_batch)(rows, kept)


def nonzero_rows(rows: tf.Tensor) -> tf.Tensor:
    """Return booleans (...,) that are False where `rows` (..., D) is zero throughout; NaN is not zero."""
    return tf.not_equal(largest_entries(rows), 0)


def largest_entries(rows: tf.Tensor) -> tf.Tensor:
    """Return the largest absolute value in each row, (...,); NaN where the row has one."""
    return tf.maximum(tf.reduce_max(rows, axis=-1), -tf.reduce_min(rows, axis=-1))


def at_least_float32(x: tf.Tensor) -> tf.Tensor:
    """Return `x` as float32 where it is a smaller float, else as it is."""
    return tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x


def _as_rows(mask: Any, like: tf.Tensor) -> tf.Tensor:
    """Return `mask` as booleans that broadcast against `like`, (B,) or (B, positions...)."""
    mask = tf.cast(tf.convert_to_tensor(mask), tf.bool)
    while mask.shape.rank < like.shape.rank:
        mask = mask[..., None]
    return mask


# At the size of a training batch each pass over all rows costs a few percent of a step. So the derivatives of both are
# written out, and a row that is left out is divided by zero in the way that gives zero, whatever it holds: a `where`
# would be a pass of its own.


def _by_row(rows: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def normalized(rows: tf.Tensor) -> Any:
        # Squares of 1e-30 vanish in float32. The largest entry only moves the scale, so it may be a constant of the
        # differentiation: the quotient that uses it has the exact derivatives at every order.
        largest = _largest_of_kept(rows, kept)
        scaled = tf.math.divide_no_nan(rows, largest[..., None])
        length = tf.sqrt(tf.where(kept, tf.reduce_sum(tf.square(scaled), axis=-1), tf.ones_like(largest)))
        unit = scaled / length[..., None]

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            along = tf.reduce_sum(upstream * unit, axis=-1, keepdims=True)
            return tf.math.divide_no_nan(upstream - along * unit, (largest * length)[..., None])

        return unit, backward

    return normalized(rows)


def _by_batch(rows: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def normalized(rows: tf.Tensor) -> Any:
        # One scale for all rows: what is too small for it to be squared is too small to count in the mean.
        largest = tf.reduce_max(_largest_of_kept(rows, kept))
        # Not above 0: every row is zero, or a replica has none at all. NaN stays.
        largest = tf.where(largest <= 0, tf.ones_like(largest), largest)
        scaled = tf.math.divide_no_nan(rows, tf.where(kept, largest, tf.zeros_like(largest))[..., None])
        # One number a row, so float64 costs nothing here.
        squared = tf.reduce_sum(tf.cast(tf.reduce_sum(tf.square(scaled), axis=-1), tf.float64))
        exact = tf.cast(largest, tf.float64)
        total = sum_over_replicas(squared * tf.square(exact))
        count = tf.maximum(sum_over_replicas(tf.reduce_sum(tf.cast(kept, tf.float64))), 1.0)
        mean = tf.where(tf.equal(total, 0), tf.ones_like(total), total / count)
        factor = tf.cast(exact * tf.math.rsqrt(mean), rows.dtype)
        unit = scaled * factor

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            along = tf.reduce_sum(tf.cast(tf.reduce_sum(upstream * unit, axis=-1), tf.float64))
            along = tf.cast(sum_over_replicas(along) / count, rows.dtype)
            divisor = tf.where(kept, largest / factor, tf.zeros_like(largest))[..., None]
            return tf.math.divide_no_nan(upstream - along * unit, divisor)

        return unit, backward

    return normalized(rows)


def _largest_of_kept(rows: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """Return the same as a constant, 0 where `kept` is False."""
    largest = tf.stop_gradient(largest_entries(rows))
    return tf.where(kept, largest, tf.zeros_like(largest))
