"""What goes into the base model and what comes out: exactly its own inputs, and predictions keyed by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from gradalign.errors import UserError, nearest
from gradalign.gradients._keras_compat import functional_inputs

__all__ = ["Batch", "check_base", "own_inputs", "predictions_by_task"]


class Batch(NamedTuple):
    """A batch as the step takes it: inputs of the base, labels, weights, and the input that names each row's task."""

    inputs: Any
    y: Any
    sample_weight: Any
    row_task: Any


def check_base(base: Any) -> None:
    """Refuse what is not a Keras model, and a model with a training step or loss of its own, which would not run."""
    if not isinstance(base, keras.Model):
        raise UserError(f"base is a Keras model; received {type(base).__name__}.")
    for method in ("train_step", "compute_loss"):
        if getattr(type(base), method) is not getattr(keras.Model, method):
            raise UserError(
                f'Model "{base.name}" has a {method} of its own, which MultiTaskModel would pass over; '
                "move what it does into call, losses or add_loss, and give the model without it."
            )


def own_inputs(base: keras.Model, x: Any, row_task: str | None = None, *, needed: bool = True) -> tuple[Any, Any]:
    """Return the inputs of `base` out of `x`, and the `row_task` column of `x` (or `None`).

    A functional model that takes {b, c} and is fed {a, b, c} computes on a and b; so its inputs are picked by name. A
    subclassed model picks from the dict by itself and gets all of it. Where the row task is not needed, as in
    prediction, it may be missing.

    Raises:
        UserError: for a key that is neither an input of `base` nor the row task, and for a missing row task.
    """
    if not isinstance(x, Mapping):
        if row_task is not None and needed:
            raise UserError(f'row_task="{row_task}" names a key of x, but x is not a dict; it is {type(x).__name__}.')
        return x, None
    if row_task is not None and needed and row_task not in x:
        raise UserError(
            f'row_task="{row_task}" is not a key of x; it has {", ".join(map(str, x))}.{nearest(row_task, x)}'
        )
    column = None if row_task is None else x.get(row_task)
    struct = functional_inputs(base)
    if struct is None:
        return x, column
    names = list(struct) if isinstance(struct, Mapping) else [tensor.name for tensor in keras.tree.flatten(struct)]
    for key in x:
        if key not in names and key != row_task:
            raise UserError(
                f'x has a key "{key}" that is not an input of model "{base.name}", which takes {", ".join(names)}.'
                f"{nearest(str(key), names)}"
            )
    for name in names:
        if name not in x:
            raise UserError(f'x lacks "{name}", an input of model "{base.name}".{nearest(name, x)}')
    if isinstance(struct, Mapping):
        return {name: x[name] for name in names}, column
    inputs = [x[name] for name in names]
    return (inputs if isinstance(struct, (list, tuple)) else inputs[0]), column


def predictions_by_task(base: keras.Model, outputs: Any) -> dict[str, Any]:
    """Return `outputs` of `base` if they are a dict keyed by task name.

    Raises:
        UserError: where they are anything else.
    """
    if not isinstance(outputs, Mapping) or not outputs or not all(isinstance(key, str) for key in outputs):
        received = f"a {type(outputs).__name__}"
        if isinstance(outputs, Mapping):
            received = f"a dict with the keys {list(outputs)!r}"
        raise UserError(
            f'Model "{base.name}" returns {received}; a multi-task base returns {{task name: prediction}}, '
            "such as keras.Model(inputs, {'click': click, 'buy': buy})."
        )
    return dict(outputs)
