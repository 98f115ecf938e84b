"""Other task gradients in place of those that reach the shared tensors; what lies above these keeps its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from gradalign.errors import UserError, nearest
from gradalign.gradients.normalization import at_least_float32

__all__ = ["replace_task_gradients"]


def replace_task_gradients(
    shared: Any, gradients: Mapping[str, Any], replaced: Mapping[str, Any], factors: Mapping[str, Any]
) -> tf.Tensor:
    """Return 0, to be added to a loss `sum_t f_t total_t`, whose gradient at the shared tensors `replaced` then makes.

    The gradient of what is returned is `sum_t f_t (replaced_t - gradients_t)` at the shared tensors, and nothing
    anywhere else. So whatever computes these is trained on `sum_t f_t replaced_t`, in the one backward pass, and towers
    and private embeddings on their own gradients, as without it. Of first order: neither side is differentiated.

    Args:
        shared: the tensors at which the gradients were taken, in any structure; not copies of them.
        gradients: `{task: gradient}` in the structure of `shared`, those of the totals (sums over rows).
        replaced: the same of the tasks whose gradients are replaced, and of no other.
        factors: `{task: f_t}`, numbers or scalars: what a task's total is multiplied with in the loss, so its weight
            over the number of its labelled rows where the loss is a mean.

    Raises:
        UserError: for a task in `replaced` that has no gradient or no factor.

    Example:
        >>> x = tf.constant([[1.0], [2.0]])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     loss = tf.reduce_mean(x ** 2)  # a total, times 1/2
        ...     loss += replace_task_gradients(x, {"buy": 2.0 * x}, {"buy": 6.0 * x}, {"buy": 1 / 2})
        >>> float(loss), tape.gradient(loss, x).numpy().tolist()
        (2.5, [[3.0], [6.0]])
    """
    tensors = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(shared)]
    changes: list[list[tf.Tensor]] = [[] for _ in tensors]
    for task, of_task in replaced.items():
        for what, known in (("gradient", gradients), ("factor", factors)):
            if task not in known:
                raise UserError(f'There is no {what} for task "{task}".{nearest(task, known)}')
        pairs = zip(tf.nest.flatten(of_task), tf.nest.flatten(gradients[task]), strict=True)
        for change, pair in zip(changes, pairs, strict=True):
            new, old = (at_least_float32(tf.convert_to_tensor(g)) for g in pair)
            factor = factors[task]
            # A number goes straight to the dtype: by way of float32, 0.3 would be off by 1e-8 in float64.
            factor = tf.cast(factor, new.dtype) if tf.is_tensor(factor) else tf.constant(factor, new.dtype)
            change.append(factor * (new - old))
    sums = [tf.stop_gradient(tf.add_n(change)) if change else None for change in changes]
    widest = tf.float64 if any(tensor.dtype == tf.float64 for tensor in tensors) else tf.float32

    @tf.custom_gradient
    def nothing(*tensors: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> list[tf.Tensor]:
            # Half precision only at the very end: on the loss scale, as the gradients that it is added to.
            return [
                tf.zeros_like(tensor) if part is None else tf.cast(tf.cast(upstream, part.dtype) * part, tensor.dtype)
                for tensor, part in zip(tensors, sums, strict=True)
            ]

        return tf.zeros((), widest), backward

    return nothing(*tensors)
