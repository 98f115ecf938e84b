"""Sums over the replicas of a `tf.distribute` strategy, so that losses divide by counts of the global batch."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["replica_count", "sum_over_replicas"]


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
