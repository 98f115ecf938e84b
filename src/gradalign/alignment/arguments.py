"""What an alignment is given, checked: numbers and names of its constructor, and the gradients of a call."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from gradalign.errors import UserError, nearest

__all__ = [
    "are_names",
    "gradients_by_task",
    "is_count",
    "not_negative",
    "one_of",
    "share_below_one",
    "share_of_rows",
    "true_or_false",
]


def gradients_by_task(grads: Any) -> dict[str, list[tf.Tensor]]:
    """Return `{task: [gradient at each shared tensor]}`.

    Raises:
        UserError: for anything but a dict, a gradient that is `None`, and tasks whose gradients differ in shape.
    """
    if not isinstance(grads, Mapping) or not grads:
        raise UserError(f"An alignment takes {{task: gradient}}; received {type(grads).__name__}.")
    flat: dict[str, list[tf.Tensor]] = {}
    for task, of_task in grads.items():
        parts = tf.nest.flatten(of_task)
        if any(part is None for part in parts):
            raise UserError(
                f'The gradient of task "{task}" is None: its loss does not depend on the shared tensor, or the tape '
                "did not watch it; take the gradients with task_gradients, which names the cause."
            )
        flat[task] = [tf.convert_to_tensor(part) for part in parts]
    first, *others = flat
    for task in others:
        shapes, known = ([g.shape for g in flat[name]] for name in (task, first))
        fits = len(shapes) == len(known) and all(a.is_compatible_with(b) for a, b in zip(shapes, known, strict=True))
        if not fits:
            raise UserError(
                "The gradients of the tasks are those at the same shared tensors, so their shapes are equal; "
                f'"{first}" has {", ".join(map(str, known))} and "{task}" {", ".join(map(str, shapes))}.'
            )
    return flat


def not_negative(name: str, value: Any) -> float:
    """Return a finite number of 0 or more, or raise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
        raise UserError(f"The {name} of an alignment is a finite number, 0 or more; received {value!r}.")
    return float(value)


def share_of_rows(value: Any) -> float:
    """Return a number above 0 and up to 1, or raise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) <= 1:
        raise UserError(f"The fraction of the rows that are aligned is a number above 0, up to 1; received {value!r}.")
    return float(value)


def share_below_one(name: str, value: Any) -> float:
    """Return a number from 0 up to, but without, 1, or raise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < 1:
        raise UserError(f"{name} is a number from 0 up to, but without, 1; received {value!r}.")
    return float(value)


def true_or_false(name: str, value: Any) -> bool:
    """Return a boolean, or raise."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is True or False; received {value!r}.")
    return value


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number of 1 or more."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def are_names(value: Any) -> bool:
    """Whether `value` is a list of different names, not empty."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return `value` where it is one of `known`, or raise with the nearest."""
    if value not in known:
        choices = ", ".join(f'"{k}"' for k in known)
        raise UserError(f"{name} is one of {choices}; received {value!r}.{nearest(str(value), known)}")
    return str(value)
