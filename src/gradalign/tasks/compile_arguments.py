"""What `compile` is given, resolved to the tasks of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradalign.errors import UserError, nearest
from gradalign.tasks.losses import check_reduction, check_rows, check_second_derivative

__all__ = ["loss_weights_by_task", "losses_by_task"]


def losses_by_task(loss: Any, tasks: list[str], aligned: list[str]) -> dict[str, Any]:
    """Return `{task: loss}` of the tasks that are trained, in task order.

    Args:
        loss: `{task: loss}`, or one loss for every task.
        tasks: all outputs of the base.
        aligned: tasks that the alignment compares; these need a loss.

    Raises:
        UserError: for an unknown task, a loss with `reduction="sum"` or one that compares rows, and an aligned task
            without a loss or with one that has no second derivative.
    """
    losses = loss if isinstance(loss, Mapping) else dict.fromkeys(tasks, loss)
    _check_names("loss", losses, tasks)
    trained = {task: losses[task] for task in tasks if losses.get(task) is not None}
    if not trained:
        raise UserError(f"No task has a loss; give one to at least one of {', '.join(tasks)}.")
    for task in aligned:
        if task not in trained:
            raise UserError(
                f'Task "{task}" has no loss, so it has no gradient to align: give it one in compile, or name the tasks '
                f"to align, as in AdversarialAlignment(tasks={list(trained)!r})."
            )
    for task, of_task in trained.items():
        check_reduction(task, of_task)
        check_rows(task, of_task)
        if task in aligned:
            check_second_derivative(task, of_task)
    return trained


def loss_weights_by_task(loss_weights: Any, tasks: list[str], trained: Mapping[str, Any]) -> dict[str, float]:
    """Return `{task: weight}` of the trained tasks; a missing task weighs 1.

    Raises:
        UserError: for an unknown task, or anything but a dict.
    """
    if loss_weights is not None and not isinstance(loss_weights, Mapping):
        raise UserError(f"loss_weights is a dict keyed by task; received {loss_weights!r}.")
    _check_names("loss_weights", loss_weights or {}, tasks)
    return {task: float((loss_weights or {}).get(task, 1.0)) for task in trained}


def _check_names(argument: str, given: Mapping[Any, Any], tasks: list[str]) -> None:
    for name in given:
        if name not in tasks:
            raise UserError(
                f'{argument} names an unknown task "{name}"; the tasks are {", ".join(tasks)}.'
                f"{nearest(str(name), tasks)}"
            )
