"""Updates of an optimizer: what its settings ask of the gradients, and a step that is left out."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.gradients.replicas import replica_count

__all__ = ["accumulates", "apply_if", "needs_whole_gradients"]


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def _parts(optimizer: Any) -> list[Any]:
    """Return the optimizers that update: an optimizer may keep tables and the rest apart."""
    inner = _inner(optimizer)
    return [inner.tables, inner.rest] if hasattr(inner, "tables") else [inner]


def accumulates(optimizer: Any) -> bool:
    """Tell whether `optimizer` adds up the gradients of several steps before it updates.

    Example:
        >>> accumulates(keras.optimizers.SGD(gradient_accumulation_steps=2)), accumulates(keras.optimizers.SGD())
        (True, False)
    """
    return bool(_inner(optimizer).gradient_accumulation_steps)


def needs_whole_gradients(optimizer: Any) -> bool:
    """Tell whether `optimizer` clips its gradients or looks for overflow in them, which parts of them do not show.

    Example:
        >>> needs_whole_gradients(keras.optimizers.SGD(clipnorm=1.0)), needs_whole_gradients(keras.optimizers.SGD())
        (True, False)
    """
    return _inner(optimizer) is not optimizer or any(map(_clips, _parts(optimizer)))


def _clips(optimizer: Any) -> bool:
    # Row-wise optimizers clip by themselves and keep their limits from Keras.
    own = getattr(optimizer, "limits", {}).values()
    return any((optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue, *own))


def apply_if(condition: tf.Tensor, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """Apply `gradients` where `condition` holds; else `optimizer` and `variables` stay as they are.

    Args:
        condition: boolean scalar; of several replicas the first one's counts.
        optimizer: a Keras optimizer that is built.
        gradients: of `variables`; tensors or `None`.
        variables: Keras variables.

    Example:
        >>> variable, adam = keras.Variable([1.0]), keras.optimizers.SGD(0.5)
        >>> adam.build([variable])
        >>> apply_if(tf.constant(False), adam, [tf.constant([1.0])], [variable])
        >>> apply_if(tf.constant(True), adam, [tf.constant([1.0])], [variable])
        >>> variable.numpy().tolist(), int(adam.iterations)
        ([0.5], 1)
    """

    def apply(gradients: list[Any]) -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def apply_on_each(strategy: Any, condition: Any, gradients: list[Any]) -> None:
        # An update meets the other replicas, which it cannot from within a branch: so the branch is around all of them.
        tf.cond(
            strategy.experimental_local_results(condition)[0],
            lambda: strategy.extended.call_for_each_replica(apply, args=(gradients,)),
            lambda: None,
        )

    if replica_count() == 1:
        tf.cond(condition, lambda: apply(gradients), lambda: None)
    else:
        tf.distribute.get_replica_context().merge_call(apply_on_each, args=(condition, gradients))
