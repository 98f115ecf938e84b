"""The rows that an alignment compares: one for each example and aligned task, and which of them count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.factors import Factors

__all__ = ["TaskRows", "labelled_rows", "own_rows"]


class TaskRows:
    """The gradient rows of all aligned tasks.

    Attributes:
        gradients: (T, B, D), or (T, B, positions..., C) with `per="position"`; normalised, zero where left out. With
            `factors` they are put together when they are asked for.
        kept: booleans (T, B) or (T, B, positions...): the row has the task's label and a gradient that is not zero.
        valid: boolean scalar, whether every row's own task is one of the model's; `None` without `row_task`.
        factors: the same gradients as a product for each task, for an alignment that asked for them; else `None`.
    """

    def __init__(
        self,
        gradients: tf.Tensor | None,
        kept: tf.Tensor,
        valid: tf.Tensor | None = None,
        factors: Sequence[Factors] | None = None,
    ) -> None:
        self._gradients = gradients
        self.kept = kept
        self.valid = valid
        self.factors = factors

    @property
    def gradients(self) -> tf.Tensor:
        """See the class."""
        if self._gradients is None:
            assert self.factors is not None
            self._gradients = tf.stack([tf.math.multiply_no_nan(f.inner, f.scale) for f in self.factors])
        return self._gradients


def labelled_rows(task: str, mask: Any, own: Any, g: tf.Tensor) -> tf.Tensor | None:
    """Return booleans of the shape of the rows of `g`, (B, ...): those with the task's label; `None` for all.

    Args:
        task: whose they are, for messages.
        mask: booleans (B, ...), or `None`.
        own: booleans (B,), the rows whose own task this is, or `None`.
        g: the task's gradient.

    Raises:
        UserError: for another number of rows than `g` has.
    """
    found = None
    for given, what in ((mask, "mask"), (own, "row_task")):
        if given is None:
            continue
        is_kept = tf.cast(given, tf.bool)
        if not is_kept.shape[:1].is_compatible_with(g.shape[:1]):
            raise UserError(
                f'The {what} of task "{task}" has {is_kept.shape[0]} rows and its gradient {g.shape[0]}; '
                "both are those of one batch."
            )
        condition = tf.reshape(is_kept, [-1, *[1] * (g.shape.rank - 2)])
        found = condition if found is None else tf.logical_and(found, condition)
    # A mask (B, 1) stands for all positions of a row.
    return None if found is None else tf.broadcast_to(found, tf.shape(g)[:-1])


def own_rows(name: str, row_task: Any, tasks: list[str]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return `{task: booleans (B,)}`, the rows whose own task this is, and whether every row has one.

    Args:
        name: of the input that says so, for messages.
        row_task: (B,) or (B, 1): names or numbers of tasks; booleans, true for the first of two.
        tasks: the model's.

    Raises:
        UserError: for booleans where there are not two tasks, and for floats.

    Example:
        >>> rows, valid = own_rows("which", tf.constant([1, 0]), ["click", "buy"])
        >>> rows["buy"].numpy().tolist(), bool(valid)
        ([True, False], True)
    """
    row_task = tf.reshape(tf.convert_to_tensor(row_task), [-1])
    if row_task.dtype == tf.bool:
        if len(tasks) != 2:
            raise UserError(
                f'The boolean row_task "{name}" chooses between two tasks, but there are '
                f"{len(tasks)}: {', '.join(tasks)}; use their numbers or names."
            )
        choices: list[Any] = [True, False]
    elif row_task.dtype == tf.string:
        choices = list(tasks)
    elif row_task.dtype.is_integer:
        choices = list(range(len(tasks)))
    else:
        raise UserError(
            f'The row_task "{name}" holds booleans, task numbers or task names; received {row_task.dtype.name}.'
        )
    own = {task: tf.equal(row_task, tf.constant(c, row_task.dtype)) for task, c in zip(tasks, choices, strict=True)}
    valid = tf.reduce_all(tf.reduce_any(tf.stack(list(own.values())), axis=0))
    tf.debugging.Assert(valid, [f'The row_task "{name}" names a task outside {tasks}:', row_task])
    return own, valid
