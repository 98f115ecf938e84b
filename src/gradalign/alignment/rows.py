"""The rows that an alignment compares: one for each example and aligned task, and which of them count."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.factors import Factors
from gradalign.gradients.replicas import sum_over_replicas

__all__ = ["TaskRows", "kept_first", "labelled_rows", "own_rows", "turned"]


class TaskRows:
    """The gradient rows of all aligned tasks.

    Attributes:
        gradients: (T, B, D), or (T, B, positions..., C) with `per="position"`; normalised, zero where left out. With
            `factors` they are put together when they are asked for.
        kept: booleans (T, B) or (T, B, positions...): the row has the task's label and a gradient that is not zero.
        valid: boolean scalar, whether every row's own task is one of the model's; `None` without `row_task`.
        factors: the same gradients as a product for each task, for an alignment that asked for them; else `None`.
        positives: booleans of the shape of `kept`, the rows whose label is positive, where a task's positive rows shall
            weigh as much as its negative ones; else `None`.
    """

    def __init__(
        self,
        gradients: tf.Tensor | None,
        kept: tf.Tensor,
        valid: tf.Tensor | None = None,
        factors: Sequence[Factors] | None = None,
        positives: tf.Tensor | None = None,
    ) -> None:
        self._gradients = gradients
        self.kept = kept
        self.valid = valid
        self.factors = factors
        self.positives = positives
        self._shares: tuple[tf.Tensor, tf.Tensor] | None = None

    @property
    def gradients(self) -> tf.Tensor:
        """See the class."""
        if self._gradients is None:
            assert self.factors is not None
            self._gradients = tf.stack([tf.math.multiply_no_nan(f.inner, f.scale) for f in self.factors])
        return self._gradients

    @property
    def shares(self) -> tf.Tensor:
        """Weights of the shape of `kept`: those of a task sum to 1 over all replicas, or to 0 where it has no rows."""
        return self._weighed()[0]

    @property
    def present(self) -> tf.Tensor:
        """(T,): 1 for a task that has rows on any replica, else 0."""
        return self._weighed()[1]

    def _weighed(self) -> tuple[tf.Tensor, tf.Tensor]:
        if self._shares is None:
            dtype = self.gradients.dtype if self.factors is None else self.factors[0].inner.dtype
            classes = [self.kept]
            if self.positives is not None:
                classes = [self.kept & self.positives, self.kept & tf.logical_not(self.positives)]
            members = tf.cast(tf.stack(classes), dtype)
            counts = sum_over_replicas(tf.reduce_sum(members, axis=list(range(2, members.shape.rank)), keepdims=True))
            # A class without rows leaves its half to the other.
            found = tf.reduce_sum(tf.cast(counts > 0, dtype), axis=0)
            shares = tf.reduce_sum(members / tf.maximum(counts, 1.0), axis=0) / tf.maximum(found, 1.0)
            self._shares = shares, tf.reshape(tf.cast(found > 0, dtype), [-1])
        return self._shares

    def task_means(self, values: tf.Tensor) -> tf.Tensor:
        """Return this replica's part of the mean of `values` (T, B, ..., K) over each task's rows, (T, K).

        Example:
            >>> rows = TaskRows(tf.ones([2, 2, 1]), tf.constant([[True, True], [True, False]]))
            >>> rows.task_means(tf.constant([[[1.0], [3.0]], [[5.0], [9.0]]])).numpy().tolist()
            [[2.0], [5.0]]
        """
        # A where, not a product alone, so that nothing in rows that are left out can matter.
        weighed = tf.where(self.kept[..., None], values, tf.zeros_like(values)) * tf.cast(
            self.shares[..., None], values.dtype
        )
        return tf.reduce_sum(weighed, axis=list(range(1, values.shape.rank - 1)))

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Return this replica's part of the mean over tasks of the mean of `values` (T, B, ...) over a task's rows.

        Tasks without rows do not count; 0 where none has any.

        Example:
            >>> rows = TaskRows(tf.ones([2, 2, 1]), tf.constant([[True, True], [True, False]]))
            >>> float(rows.mean(tf.constant([[1.0, 3.0], [5.0, 9.0]])))
            3.5
        """
        present = tf.cast(self.present, values.dtype)
        return tf.reduce_sum(self.task_means(values[..., None])) / tf.maximum(tf.reduce_sum(present), 1.0)

    def mapped(self, change: Callable[[tf.Tensor], tf.Tensor]) -> TaskRows:
        """Return the same rows after `change`, which leaves values as they are, such as `tf.stop_gradient`."""
        self._weighed()  # Once for all copies: it may take a sum over replicas.
        found = copy.copy(self)
        if self.factors is None:
            found._gradients = change(self.gradients)
        else:
            # Each derivative of a product goes through one of its factors.
            names = [f.name for f in dataclasses.fields(Factors)]
            found.factors = [Factors(*(change(getattr(f, name)) for name in names)) for f in self.factors]
            found._gradients = None
        return found

    def only(self, rows: tf.Tensor) -> TaskRows:
        """Return those of the rows that `rows`, booleans of the shape of `kept`, picks, with weights of their own."""
        found = copy.copy(self)
        found.kept = tf.logical_and(self.kept, rows)
        found._shares = None
        return found


def kept_first(kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the numbers of each task's kept rows (T, B), in their order and followed by zeros, and how many, (T,).

    Example:
        >>> order, counts = kept_first(tf.constant([[False, True, False, True]]))
        >>> order.numpy().tolist(), counts.numpy().tolist()
        ([[1, 3, 0, 0]], [2])
    """
    places = tf.cumsum(tf.cast(kept, tf.int32), axis=1) - 1
    tasks, size = tf.shape(kept)[0], tf.shape(kept)[1]
    # Rows that are left out write a 0, which changes nothing.
    numbers = tf.where(kept, tf.broadcast_to(tf.range(size), tf.shape(kept)), tf.zeros_like(places))
    index = tf.stack([tf.broadcast_to(tf.range(tasks)[:, None], tf.shape(kept)), tf.maximum(places, 0)], axis=-1)
    order = tf.tensor_scatter_nd_max(tf.zeros_like(places), index, numbers)
    return order, tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)


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


def turned(rows: Any, positive: tf.Tensor) -> Any:
    """Return `rows` with those of positive labels turned round: they then point the way of `dz/ds`, of any label.

    For one logit z and a loss that falls towards the label, `dl/ds = dl/dz dz/ds`, and `sign(dl/dz)` is -1 where the
    label is positive and 1 where it is not.

    Args:
        rows: gradients (B, ..., D), or `Factors` of (B, D).
        positive: booleans (B, ...).

    Example:
        >>> turned(tf.constant([[1.0, 2.0], [1.0, 2.0]]), tf.constant([True, False])).numpy().tolist()
        [[-1.0, -2.0], [1.0, 2.0]]
    """
    if isinstance(rows, Factors):
        return dataclasses.replace(rows, scale=turned(rows.scale, positive))
    return tf.where(positive[..., None], -rows, rows)
