"""Checks of what `synthetic` is given: one sentence that names the argument, its range and what was received."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradalign.errors import UserError, nearest

__all__ = ["check_counts", "check_numbers", "check_room", "rates_by_task", "shares_by_task"]

_LEAST = {"rows": 1, "validation_rows": 1, "test_rows": 1, "fields": 1, "categories": 2, "users": 2, "seed": 0}
_DEFAULT_RATE = 0.2


def check_counts(counts: Mapping[str, Any]) -> None:
    """Refuse what is no whole number or too small; `users` may be None."""
    for name, value in counts.items():
        if name == "users" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < _LEAST[name]:
            raise UserError(f"{name} is a whole number, {_LEAST[name]} or more; received {value!r}.")


def check_numbers(tasks: int, *, correlation: Any, noise: Any, interaction: Any, skew: Any) -> None:
    """Refuse what is no number or out of range, for so many tasks."""
    least = -1.0 if tasks == 2 else 0.0
    if not (_is_number(correlation) and least <= correlation <= 1.0):
        of_tasks = f"{tasks} task{'s' if tasks > 1 else ''}"
        raise UserError(f"correlation is from {least:g} to 1 for {of_tasks}; received {correlation!r}.")
    if not (_is_number(noise) and noise > 0.0):
        raise UserError(f"noise is a number above 0; received {noise!r}.")
    if not (_is_number(interaction) and 0.0 <= interaction < 1.0):
        raise UserError(f"interaction is a share from 0 up to, but without, 1; received {interaction!r}.")
    if not (_is_number(skew) and skew >= 0.0):
        raise UserError(f"skew is a number, 0 or more; received {skew!r}.")


def shares_by_task(labelled_share: Any) -> dict[str, float]:
    """Return {task: share of the rows that are labelled}."""
    if not isinstance(labelled_share, Mapping) or not labelled_share:
        raise UserError(f"labelled_share is a mapping from task to share of rows; received {labelled_share!r}.")
    for task, share in labelled_share.items():
        if not (_is_number(share) and 0.0 < share <= 1.0):
            raise UserError(f'labelled_share of task "{task}" is a share above 0, up to 1; received {share!r}.')
    return dict(labelled_share)


def rates_by_task(base_rates: Any, tasks: Sequence[str]) -> list[float]:
    """Return the share of positive labels of each of `tasks`."""
    given = base_rates if isinstance(base_rates, Mapping) else dict.fromkeys(tasks, base_rates)
    for task, rate in given.items():
        if task not in tasks:
            raise UserError(
                f'base_rates names "{task}", but the tasks, which labelled_share names, are {", ".join(tasks)}.'
                f"{nearest(str(task), tasks)}"
            )
        if not (_is_number(rate) and 0.0 < rate < 1.0):
            raise UserError(f'base_rates of task "{task}" is a share between 0 and 1; received {rate!r}.')
    return [given.get(task, _DEFAULT_RATE) for task in tasks]


def check_room(sizes: Sequence[int], tasks: int, interaction: float) -> None:
    """Refuse fields with too few categories: uncorrelated effects, one shared and one a task, need as many directions.

    Example:
        >>> check_room([3], 2, 0.0)
        Traceback (most recent call last):
        ...
        gradalign.errors.UserError: The fields have room for 2 uncorrelated effects, and 3 are needed, a shared one and
        one for each task; give more fields or more categories.
    """
    free = np.array(sizes) - 1
    needed = f"{tasks + 1} are needed, a shared one and one for each task; give more fields or more categories"
    if free.sum() < tasks + 1:
        raise UserError(f"The fields have room for {free.sum()} uncorrelated effects, and {needed}.")
    pairs = (free.sum() ** 2 - np.square(free).sum()) // 2
    if interaction > 0 and pairs < tasks + 1:
        raise UserError(f"Pairs of fields have room for {pairs} uncorrelated effects, and {needed}, or interaction=0.")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
