"""What an optimizer's constructor is given, checked."""

from __future__ import annotations

import math
import numbers
from typing import Any

import keras

from gradalign.errors import UserError

__all__ = ["learning_rate_of", "not_negative", "share_below_one"]


def not_negative(kind: str, name: str, value: Any) -> float:
    """Return a finite number of 0 or more, or raise.

    Args:
        kind: the optimizer's class, for the message.
        name: the argument's name.
        value: what was given.

    Example:
        >>> not_negative("LazyAdam", "epsilon", -1)
        Traceback (most recent call last):
        ...
        gradalign.errors.UserError: epsilon of LazyAdam is a number, 0 or more; received -1.
    """
    if not _is_number(value) or value < 0:
        raise UserError(f"{name} of {kind} is a number, 0 or more; received {value!r}.")
    return float(value)


def share_below_one(kind: str, name: str, value: Any) -> float:
    """Return a number in [0, 1), or raise; arguments as of `not_negative`."""
    if not _is_number(value) or not 0 <= value < 1:
        raise UserError(f"{name} of {kind} is a number in [0, 1); received {value!r}.")
    return float(value)


def learning_rate_of(kind: str, value: Any) -> Any:
    """Return a rate of 0 or more as a number, and what Keras asks for the rate in each step as it is, or raise."""
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule) or callable(value):
        return value
    if not _is_number(value) or value < 0:
        raise UserError(f"learning_rate of {kind} is a number, 0 or more, or a Keras schedule; received {value!r}.")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
