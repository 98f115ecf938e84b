"""Sums over the replicas of a `tf.distribute` strategy: a loss or a gradient is that of the global batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["replica_count", "rows_of_replicas", "sum_on_first_replica", "sum_over_replicas", "summed_replicas"]


def replica_count() -> int:
    """Return the number of replicas that train in step; 1 outside a strategy."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def sum_over_replicas(x: tf.Tensor) -> tf.Tensor:
    """Return `x` summed over all replicas, the same on each; differentiable. Alone, `x` itself.

    Args:
        x: tensor of any shape, the same shape on every replica.

    Example:
        >>> sum_over_replicas(tf.constant([1.0, 2.0])).numpy().tolist()
        [1.0, 2.0]
    """
    context = tf.distribute.get_replica_context()
    # No replica context: a check that runs on one batch outside `strategy.run`; that batch is the whole batch.
    if context is None or replica_count() == 1:
        return x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def summed_replicas() -> int:
    """Return how many replicas `sum_over_replicas` sums over here: what all of them compute is divided by it."""
    return 1 if tf.distribute.get_replica_context() is None else replica_count()


def rows_of_replicas(x: tf.Tensor, axis: int = 0) -> tf.Tensor:
    """Return `x` of all replicas, one behind the other along `axis`; the same on each, differentiable. Alone, `x`.

    Args:
        x: tensor whose other axes are as long on every replica.
        axis: of the rows.

    Example:
        >>> rows_of_replicas(tf.constant([1.0, 2.0])).numpy().tolist()
        [1.0, 2.0]
    """
    if summed_replicas() == 1:
        return x
    gathered = tf.distribute.get_replica_context().all_gather(x, axis)
    gathered.set_shape([None if number == axis else size for number, size in enumerate(x.shape)])
    return gathered


def sum_on_first_replica(gradients: list[Any], *, dense: bool = True) -> list[Any]:
    """Return the gradients of the global batch on the first replica, and zeros on the others. Alone, as they are.

    A Keras optimizer clips, unscales and checks what its replica has, and sums over the replicas only then; it squares
    the parts of a table's row that two replicas look up, not their sum. Given these it works on the whole gradient.

    Args:
        gradients: tensors, `tf.IndexedSlices` and `None`.
        dense: `False` leaves tensors to the optimizer's own sum, which is right as long as it does neither of these.

    Example:
        >>> sum_on_first_replica([tf.constant([1.0]), None])[0].numpy().tolist()
        [1.0]
    """
    context = tf.distribute.get_replica_context()
    if context is None or replica_count() == 1:
        return gradients
    places = [i for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices) or (dense and g is not None)]
    if not places:
        return gradients
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    found = list(gradients)
    for place, g in zip(
        places, context.all_reduce(tf.distribute.ReduceOp.SUM, [gradients[i] for i in places]), strict=True
    ):
        found[place] = _where(is_first, g)
    return found


def _where(condition: tf.Tensor, gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_where(condition, gradient.values), gradient.indices, gradient.dense_shape)
    return tf.where(condition, gradient, tf.zeros_like(gradient))
