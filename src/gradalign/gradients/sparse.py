"""Gradients of embedding tables: rows that a batch looks up several times."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["gather_densely", "sum_repeated_rows"]


def sum_repeated_rows(gradient: Any) -> Any:
    """Return a table's sparse gradient with each row once, its parts summed; any other gradient as it is.

    Adam and its kin square a gradient, and the square of a sum is not the sum of squares: Keras 3.15 hands them the
    parts, so that a row that a batch holds three times moves too far. PyTorch and dense gradients sum first.

    Under XLA, rows that come from another `unique`, as those of `FieldEmbedding` do, may be padded with repetitions
    whose values are zero; what adds the parts up is not changed by these.

    A row that several replicas look up is one row only after their gradients are summed, by `sum_on_first_replica`.

    Args:
        gradient: `tf.IndexedSlices`, tensor or `None`.

    Example:
        >>> parts = tf.IndexedSlices(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([0, 0, 2]), tf.constant([4, 1]))
        >>> whole = sum_repeated_rows(parts)
        >>> whole.indices.numpy().tolist(), whole.values.numpy().tolist()
        ([0, 2], [[3.0], [3.0]])
    """
    if not isinstance(gradient, tf.IndexedSlices) or _are_different(gradient.indices):
        return gradient
    rows, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _are_different(rows: tf.Tensor) -> bool:
    """Tell whether a graph says that no row is there twice: they come out of `unique`, as `FieldEmbedding`'s do."""
    if tf.executing_eagerly():
        return False
    while rows.op.type in ("Identity", "Reshape"):
        rows = rows.op.inputs[0]
    return bool(rows.op.type in ("Unique", "UniqueV2") and rows.op.outputs[0] is rows)


def gather_densely(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return the `rows` (n,) of `values` (B, ...), with a dense gradient.

    That of `tf.gather` is `tf.IndexedSlices`, which the second derivative of tanh, among others, cannot work with.

    Example:
        >>> values = tf.constant([1.0, 2.0, 3.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(values)
        ...     total = tf.reduce_sum(gather_densely(values, tf.constant([2, 0])) ** 2)
        >>> tape.gradient(total, values).numpy().tolist()
        [2.0, 0.0, 6.0]
    """

    @tf.custom_gradient
    def gather(values: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(upstream, rows, tf.shape(values)[0])

        return tf.gather(values, rows), backward

    return gather(values)
