"""Schedules of the reversal's strength over the progress of training.

Progress `p` is the step over the total number of steps, at most 1. The default is Ganin et al., JMLR 2016, section
5.2.2: `2 / (1 + exp(-10 p)) - 1`, zero at the start so that the discriminator learns first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gradalign.errors import UserError, nearest

__all__ = ["SCHEDULES", "needs_total_steps", "schedule_value", "validated_schedule"]


def _ganin(progress: tf.Tensor) -> tf.Tensor:
    return 2.0 / (1.0 + tf.exp(-10.0 * progress)) - 1.0


def _linear(progress: tf.Tensor) -> tf.Tensor:
    return progress


SCHEDULES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {"ganin": _ganin, "linear": _linear}


def validated_schedule(schedule: Any) -> Any:
    """Return `schedule` if it is a known name, a finite number of 0 or more, or a callable of progress.

    Example:
        >>> validated_schedule("linear")
        'linear'
        >>> validated_schedule("gannin")
        Traceback (most recent call last):
        ...
        gradalign.errors.UserError: The schedule 'gannin' is unknown; use ... Did you mean "ganin"?
    """
    wanted = 'use "ganin", "linear", a number, or a function of progress (0 to 1).'
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise UserError(f"The schedule {schedule!r} is unknown; {wanted}{nearest(schedule, SCHEDULES)}")
        return schedule
    if isinstance(schedule, (int, float)) and not isinstance(schedule, bool):
        if not math.isfinite(schedule) or schedule < 0:
            raise UserError(f"A number as schedule is finite and 0 or more; received {schedule!r}.")
        return float(schedule)
    if callable(schedule):
        return schedule
    raise UserError(f"The schedule {schedule!r} is not one; {wanted}")


def needs_total_steps(schedule: Any) -> bool:
    """Tell whether the schedule depends on progress, and so on the total number of steps."""
    return not isinstance(schedule, float)


def schedule_value(schedule: Any, progress: tf.Tensor) -> tf.Tensor:
    """Return the schedule at `progress`, a float64 scalar.

    Example:
        >>> round(float(schedule_value("ganin", tf.constant(0.1, tf.float64))), 6)
        0.462117
    """
    if isinstance(schedule, float):
        return tf.constant(schedule, tf.float64)
    function = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    return tf.cast(tf.convert_to_tensor(function(progress)), tf.float64)
