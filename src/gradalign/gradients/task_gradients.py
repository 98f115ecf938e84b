"""Every task's gradient at the shared representation, itself differentiable: `grad(loss, feature, create_graph=True)`.

Tapes of TensorFlow fail at this silently (a tensor that is not watched, an inner gradient taken outside the outer tape,
a tape that gives one gradient only), so this file owns their nesting: `TaskTape` is what both `task_gradients` and
`gradalign.MultiTaskModel` use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.factors import Factors, Note
from gradalign.gradients.sparse import gather_densely

__all__ = ["TaskGradients", "TaskTape", "recording_tapes", "task_gradients"]

# The tapes that record at the moment, outermost first. Replicas of a strategy run in threads of their own.
_threads = threading.local()


def recording_tapes() -> list[TaskTape]:
    """Return the task tapes that record in this thread; a layer with a cheaper rule for two orders asks for them."""
    if not hasattr(_threads, "tapes"):
        _threads.tapes = []
    found: list[TaskTape] = _threads.tapes
    return found


REACHES = ("all", "shared")


class TaskGradients(dict):  # type: ignore[type-arg]
    """`{task: gradient}`, and the same gradients with their second-order path limited to the shared tensors.

    A gradient `g(s, w)` depends on the shared tensors `s` and on the weights `w` of what lies above them. `limited()`
    returns equal values whose own gradient reaches `s` alone. `factors` are the gradients of each task as a product,
    or `None` where they are not known as one.
    """

    # A tf.function that returns these makes an empty object of the same class and fills it, hence the defaults.
    def __init__(
        self, gradients: Mapping[str, Any] | None = None, limited: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        super().__init__(gradients or {})
        self._limited = limited
        self.factors: dict[str, Factors] | None = None

    def limited(self) -> dict[str, Any]:
        """Return the gradients with the second-order path into towers and private embeddings cut."""
        if self._limited is None:
            raise UserError(
                "These task gradients have no second-order path: "
                "they were taken with create_graph=False, or came out of a tf.function."
            )
        return self._limited()


@dataclass(frozen=True)
class Watched:
    """A shared tensor on a `TaskTape`.

    Attributes:
        copy: what the pass goes on with, (B, ...).
        source: what `copy` is made of; second-order gradients go to it.
        leaf: where task gradients are taken: `copy` itself, or its sampled rows (n, ...).
    """

    copy: tf.Tensor
    source: tf.Tensor
    leaf: tf.Tensor


class TaskTape:
    """Records one forward pass from the shared tensors to the task losses, then gives all task gradients.

    Args:
        limit_reach: also record what `TaskGradients.limited` needs.
        rows: numbers (n,) of the rows whose gradients are wanted; all rows if `None`.
        factored: also tell the gradients' factors, where a tower knows them.

    Example:
        >>> x = tf.constant([[1.0, 2.0]])
        >>> with tf.GradientTape() as outer:
        ...     outer.watch(x)
        ...     with TaskTape() as tape:
        ...         shared = tape.watch(x * 1.0)
        ...         losses = {"a": tf.reduce_sum(shared ** 3)}
        ...     gradients = tape.gradients(losses, [shared])
        ...     penalty = tf.reduce_sum(gradients["a"][0])
        >>> outer.gradient(penalty, x).numpy().tolist()
        [[6.0, 12.0]]
    """

    def __init__(self, *, limit_reach: bool = False, rows: tf.Tensor | None = None, factored: bool = False) -> None:
        self.rows = rows
        self._factored = factored
        # What was noted while the gradients of one task were taken.
        self._noted: list[tuple[tf.Tensor, Factors]] = []
        # Only the copies that `watch` makes are followed, so each task's backward pass visits its own tower alone.
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self._second = tf.GradientTape(persistent=True, watch_accessed_variables=False) if limit_reach else None
        self._watched: list[Watched] = []

    def __enter__(self) -> TaskTape:
        if self._second is not None:
            self._second.__enter__()
        self._tape.__enter__()
        recording_tapes().append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        recording_tapes().remove(self)
        self._tape.__exit__(*error)
        if self._second is not None:
            self._second.__exit__(*error)

    def watch(self, tensor: Any) -> tf.Tensor:
        """Return a copy of `tensor` whose use from here on is recorded; the copy keeps the path to what made it."""
        copy = source = leaf = tf.identity(tensor)
        if self.rows is not None:
            leaf = tf.stop_gradient(tf.gather(source, self.rows))
        self._tape.watch(leaf)
        if self._second is not None:
            self._second.watch(source)
        if self.rows is not None:
            copy = _with_rows(source, leaf, self.rows)
        self._watched.append(Watched(copy, source, leaf))
        return copy

    def watched(self, tensor: tf.Tensor) -> Watched | None:
        """Return the shared tensor whose copy `tensor` is, if it is one."""
        return next((watched for watched in self._watched if watched.copy is tensor), None)

    def reaches(self, tensor: tf.Tensor) -> bool:
        """Tell whether `tensor`, computed inside the tape, depends on a shared tensor."""
        if self.watched(tensor) is not None:
            return True
        if not self._watched:
            return False
        with self._tape.stop_recording():
            found = self._tape.gradient(tensor, [watched.leaf for watched in self._watched])
        return any(g is not None for g in found)

    @property
    def note(self) -> Note | None:
        """What a layer calls with a gradient at a shared tensor and its factors; `None` where nobody asks for them."""
        return self._note if self._factored else None

    def _note(self, gradient: tf.Tensor, factors: Factors) -> None:
        self._noted.append((gradient, factors))

    def gradients(
        self,
        losses: Mapping[str, tf.Tensor],
        shared: list[tf.Tensor],
        *,
        create_graph: bool = True,
        allow_unused: bool = False,
        one_is_enough: bool = False,
    ) -> TaskGradients:
        """Return `{task: [d sum(loss) / d tensor, one for each tensor of shared]}`.

        Args:
            losses: `{task: loss}` computed inside the tape; a loss of rank 1 or more counts as its sum.
            shared: copies that `watch` returned; with sampled rows, gradients are (n, ...).
            create_graph: keep the gradients differentiable.
            allow_unused: zeros, instead of an error, where a loss does not depend on a tensor.
            one_is_enough: the same, as long as the loss depends on one of the tensors.

        Raises:
            UserError: names the task and the shared tensor where the loss does not depend on it.
        """
        watched = [self.watched(copy) for copy in shared]
        assert all(watched), "shared are copies that watch returned"
        leaves, sources = [w.leaf for w in watched if w], [w.source for w in watched if w]
        if self._second is not None:
            with self._second:
                gradients = self._first_order(losses, leaves, allow_unused, one_is_enough)
        else:
            gradients = self._first_order(losses, leaves, allow_unused, one_is_enough)
        if not create_graph:
            return TaskGradients(
                {task: [tf.stop_gradient(g) for g in of_task] for task, of_task in gradients.items()}, None
            )
        result = TaskGradients(gradients, None if self._second is None else lambda: self._limit(gradients, sources))
        result.factors = self._factors(gradients)
        return result

    def _factors(self, gradients: Mapping[str, list[tf.Tensor]]) -> dict[str, Factors] | None:
        """Return the factors by task, where each task's gradient is one that was noted, with nothing added to it."""
        found = {
            task: factors
            for task, of_task in gradients.items()
            for noted, factors in self._noted
            if len(of_task) == 1 and of_task[0] is noted
        }
        self._noted.clear()  # An outer tape walks the same way again.
        return found if found and len(found) == len(gradients) else None

    def _first_order(
        self, losses: Mapping[str, tf.Tensor], shared: list[tf.Tensor], allow_unused: bool, one_is_enough: bool
    ) -> dict[str, list[tf.Tensor]]:
        gradients = {}
        for task, loss in losses.items():
            found = self._tape.gradient(loss, shared, output_gradients=tf.ones_like(loss))
            may_be_unused = allow_unused or (one_is_enough and any(g is not None for g in found))
            for position, g in enumerate(found):
                if g is None and not may_be_unused:
                    which = (
                        "the shared tensor" if len(shared) == 1 else f"shared tensor {position + 1} of {len(shared)}"
                    )
                    raise UserError(
                        f'The loss of task "{task}" does not depend on {which}: let its tower take the shared tensor, '
                        "leave the task out, or pass allow_unused=True for a gradient of zeros."
                    )
            gradients[task] = [
                tf.zeros_like(s) if g is None else tf.convert_to_tensor(g) for g, s in zip(found, shared, strict=True)
            ]
        return gradients

    def _limit(self, gradients: dict[str, list[tf.Tensor]], shared: list[tf.Tensor]) -> dict[str, list[tf.Tensor]]:
        return {task: [self._limit_one(g, shared) for g in of_task] for task, of_task in gradients.items()}

    def _limit_one(self, g: tf.Tensor, shared: list[tf.Tensor]) -> tf.Tensor:
        second = self._second
        assert second is not None

        @tf.custom_gradient
        def limited(value: tf.Tensor, *_copies: tf.Tensor) -> tuple[tf.Tensor, Any]:
            def backward(upstream: tf.Tensor) -> list[Any]:
                # `value` itself gets nothing: all of the cotangent goes down the path from `g` to the shared tensors.
                found = second.gradient(
                    g, shared, output_gradients=upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
                )
                return [tf.zeros_like(value), *found]

            return tf.identity(value), backward

        return limited(tf.stop_gradient(g), *shared)


def _with_rows(source: tf.Tensor, leaf: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return `source` as a function of its sampled rows too: the gradient at `leaf` is that of `rows`."""

    @tf.custom_gradient
    def copy(source: tf.Tensor, _leaf: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> list[tf.Tensor]:
            return [upstream, gather_densely(upstream, rows)]

        return tf.identity(source), backward

    return copy(source, leaf)


def task_gradients(
    fn: Callable[[Any], Mapping[str, Any]], shared: Any, *, create_graph: bool = True, allow_unused: bool = False
) -> tuple[dict[str, tf.Tensor], TaskGradients]:
    """Return every task's loss and its gradient at `shared`, differentiable inside the caller's tape.

    The same as `torch.autograd.grad(loss.sum(), shared, create_graph=True)` for each task, from one forward pass.

    Args:
        fn: takes the shared tensors in the structure of `shared` and returns `{task: loss}`; called once. A loss is a
            scalar or has one value a row, (B,), and then counts as its sum. All use of the shared tensors must go
            through the argument.
        shared: float tensor of any rank, or a list or dict of them.
        create_graph: `False` stops the gradient of the returned gradients.
        allow_unused: `True` gives zeros where a loss does not depend on a shared tensor.

    Returns:
        `(losses, gradients)`, dicts by task in the order of `fn`; losses as `fn` gave them, gradients in the structure
        and shapes of `shared`. `gradients.limited()` has the same values without a second-order path into anything but
        `shared`.

    Raises:
        UserError: for a symbolic or non-float `shared`, a `fn` that does not return a dict of float losses, and, with
            the name of the task, a loss that does not depend on `shared`.

    Example:
        >>> table = tf.Variable([[1.0], [2.0]])
        >>> with tf.GradientTape() as tape:
        ...     feature = tf.gather(table, [0, 1])
        ...     losses, gradients = task_gradients(lambda s: {"like": s[:, 0] ** 2, "buy": s[:, 0] ** 3}, feature)
        ...     gap = tf.reduce_sum((gradients["like"] - gradients["buy"]) ** 2)
        >>> gradients["buy"].numpy().tolist()
        [[3.0], [12.0]]
        >>> tf.convert_to_tensor(tape.gradient(gap, table)).numpy().tolist()
        [[8.0], [160.0]]

    Source:
        Maninis et al., "Attentive Single-Tasking of Multiple Tasks", CVPR 2019, section 4 (the gradients that the
        discriminator sees).
    """
    if not callable(fn):
        raise UserError(
            "task_gradients takes the function of the shared tensors first and these tensors second; "
            f"received {type(fn).__name__} as the function."
        )
    flat = [_shared_tensor(s) for s in tf.nest.flatten(shared)]
    if not flat:
        raise UserError(f"task_gradients needs at least one shared tensor; received {shared!r}.")
    tape = TaskTape(limit_reach=create_graph)
    with tape:
        copies = [tape.watch(s) for s in flat]
        losses = fn(tf.nest.pack_sequence_as(shared, copies) if tf.nest.is_nested(shared) else copies[0])
        losses = _task_losses(losses)
    found = tape.gradients(losses, copies, create_graph=create_graph, allow_unused=allow_unused)

    def structured(gradients: Mapping[str, list[tf.Tensor]]) -> dict[str, Any]:
        return {
            task: tf.nest.pack_sequence_as(shared, of_task) if tf.nest.is_nested(shared) else of_task[0]
            for task, of_task in gradients.items()
        }

    return losses, TaskGradients(structured(found), (lambda: structured(found.limited())) if create_graph else None)


def _shared_tensor(value: Any) -> tf.Tensor:
    if isinstance(value, keras.KerasTensor):
        raise UserError(
            f'task_gradients needs real tensors and received the symbolic KerasTensor "{value.name}": '
            "call the model on a batch inside the training step, and pass the tensor that comes out."
        )
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise UserError(
            f"task_gradients takes dense shared tensors; received a {type(value).__name__}: "
            "pool it or make it dense first."
        )
    tensor = tf.convert_to_tensor(value)
    if not tensor.dtype.is_floating:
        raise UserError(
            f"A shared tensor is a float tensor, since only those have gradients; received {tensor.dtype.name}: "
            "pass the looked-up embeddings, not the ids."
        )
    return tensor


def _task_losses(losses: Any) -> dict[str, tf.Tensor]:
    if not isinstance(losses, Mapping) or not losses:
        raise UserError(
            f"The function given to task_gradients returns {{task: loss}}; received {type(losses).__name__}."
        )
    tensors = {}
    for task, loss in losses.items():
        if not isinstance(task, str):
            raise UserError(f"Tasks are named by strings; received {task!r}.")
        if loss is None:
            raise UserError(f'The loss of task "{task}" is None; return a float tensor for every task.')
        tensors[task] = tf.convert_to_tensor(loss)
        if not tensors[task].dtype.is_floating:
            raise UserError(f'The loss of task "{task}" is not a float tensor but {tensors[task].dtype.name}.')
    return tensors
