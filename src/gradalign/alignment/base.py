"""The contract of an alignment: `(grads, masks) -> scalar`, differentiable, added to the task losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.arguments import are_names, gradients_by_task, one_of, true_or_false
from gradalign.alignment.rows import TaskRows, labelled_rows, own_rows, turned
from gradalign.alignment.sampling import gather_rows
from gradalign.alignment.scheduled import Scheduled
from gradalign.errors import UserError, nearest
from gradalign.gradients.factors import Factors, normalize_factors
from gradalign.gradients.normalization import METHODS, PER, at_least_float32, nonzero_rows, normalize_rows
from gradalign.gradients.task_gradients import REACHES, TaskGradients

__all__ = ["Alignment"]


class Alignment(Scheduled):
    """Base class of alignments: settings, schedule and the rows that an alignment compares.

    A subclass implements `align(rows, update_metrics) -> scalar` and, where it has weights, `build_aligner(width)`.
    Where the model does not get the gradient of that scalar itself, `model_loss(rows)` says what it minimises.
    One that changes the gradients that reach the shared tensor implements `transform(grads)`.
    Arguments are those of `AdversarialAlignment`.

    Attributes:
        second_order: whether the loss goes back along the gradients; where it does not, by design, no check asks that.
    """

    second_order = True

    def __init__(
        self,
        weight: float = 0.1,
        *,
        normalize: str = "batch",
        schedule: Any = "ganin",
        total_steps: int | None = None,
        tasks: list[str] | None = None,
        row_task: str | None = None,
        reach: str = "all",
        per: str = "row",
        fraction: float = 1.0,
        every: int = 1,
        sign_free: bool = False,
        balance_labels: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        # The alignment is exempt from mixed precision: gradients are small numbers.
        kwargs.setdefault("dtype", keras.config.floatx())
        super().__init__(
            weight,
            schedule=schedule,
            total_steps=total_steps,
            fraction=fraction,
            every=every,
            name=name,
            autocast=False,
            **kwargs,
        )
        self.normalize = one_of("normalize", normalize, METHODS)
        self.reach = one_of("reach", reach, REACHES)
        self.per = one_of("per", per, PER)
        self.sign_free = true_or_false("sign_free", sign_free)
        self.balance_labels = true_or_false("balance_labels", balance_labels)
        if tasks is not None and not are_names(tasks):
            raise UserError(f"tasks is a list of different task names; received {tasks!r}.")
        if row_task is not None and not isinstance(row_task, str):
            raise UserError(f"row_task is the name of the input that names each row's task; received {row_task!r}.")
        self.tasks = None if tasks is None else list(tasks)
        self.row_task = row_task
        # Of all tasks the model has, in the model's order; set when the alignment is built.
        self.all_tasks: list[str] | None = None
        self._build_arguments: dict[str, Any] | None = None

    # --- building -----------------------------------------------------------------------------------------------

    def build_for(self, all_tasks: list[str], shared_shapes: list[list[int | None]], dtype: str) -> None:
        """Create all weights, for the tasks of a model and the shapes of its shared tensors (batch axis first)."""
        arguments = {"all_tasks": list(all_tasks), "shared_shapes": [list(s) for s in shared_shapes], "dtype": dtype}
        if self._build_arguments is not None:
            self._check_fits(arguments)
            return
        for task in self.tasks or []:
            if task not in all_tasks:
                raise UserError(
                    f'The alignment names a task "{task}", but the tasks are {", ".join(all_tasks)}.'
                    f"{nearest(task, all_tasks)}"
                )
        self._build_arguments = arguments
        self.all_tasks = list(all_tasks)
        self.build_aligner(self._width(shared_shapes), "float64" if dtype == "float64" else "float32")
        self.built = True

    def _build_on(self, flat: Mapping[str, list[tf.Tensor]]) -> None:
        """Create all weights for the gradients of a call; of a model's, they are there."""
        first = next(iter(flat.values()))
        self.build_for(list(flat), [g.shape.as_list() for g in first], _dtype(first))

    def _check_fits(self, arguments: dict[str, Any]) -> None:
        """Refuse the gradients of another model; of the tasks that are not aligned, none need be there."""
        assert self._build_arguments is not None
        for task in self.aligned_tasks:
            if task not in arguments["all_tasks"]:
                raise UserError(
                    f"This alignment was built for the tasks {', '.join(self.aligned_tasks)} and now receives "
                    f"{', '.join(arguments['all_tasks'])}; make a new alignment for them."
                )
        known, new = ([shape[1:] for shape in given["shared_shapes"]] for given in (self._build_arguments, arguments))
        if known != new:
            raise UserError(
                f"This alignment was built for shared tensors of shape (B, ...) {known} and now receives {new}; "
                "make a new alignment for them."
            )

    def _width(self, shapes: list[list[int | None]]) -> int:
        width = 0
        for shape in shapes:
            entries = shape[1:] if self.per == "row" else shape[-1:]
            if self.per == "position" and len(shape) < 3:
                raise UserError(
                    f'per="position" needs shared tensors of rank 3 or more, channels last; received shape {shape}.'
                )
            if self.per == "row" and len(shape) < 2:
                raise UserError(f"A shared tensor has one row for each example, (B, D); received shape {shape}.")
            if any(entry is None for entry in entries):
                raise UserError(
                    f"The shared tensor has shape {shape}, whose width changes from batch to batch; "
                    "take a layer behind the pooling, or pad to a fixed size."
                )
            width += math.prod(int(entry) for entry in entries if entry is not None)
        return width

    def build_aligner(self, width: int, dtype: str) -> None:
        """Create the weights for rows of `width` entries; nothing to do for an alignment without weights."""

    @property
    def has_weights(self) -> bool:
        """Whether this kind of alignment has weights that an optimizer of their own trains."""
        return type(self).build_aligner is not Alignment.build_aligner

    def get_build_config(self) -> dict[str, Any] | None:
        """Return the tasks and shapes that the weights were made for; `None` before."""
        return self._build_arguments

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Create the weights again from what `get_build_config` returned."""
        self.build_for(**config)

    # --- the loss -----------------------------------------------------------------------------------------------

    @property
    def aligned_tasks(self) -> list[str]:
        """The tasks whose gradients are compared, in the model's order; the alignment has to be built."""
        assert self.all_tasks is not None
        return [task for task in self.all_tasks if self.tasks is None or task in self.tasks]

    def __call__(
        self,
        grads: Any,
        masks: Any = None,
        row_task: Any = None,
        update_metrics: bool = False,
        rows: Any = None,
        positives: Any = None,
    ) -> Any:
        """Return the alignment loss, a scalar.

        Args:
            grads: `{task: gradient}`, each a tensor (B, ...) or a list or dict of them, as `task_gradients` returns.
            masks: `{task: booleans (B,)}`, the rows that have the task's label; a missing task has all labels.
            row_task: with `row_task=` in the constructor, what that input says of each row, (B,) or (B, 1).
            update_metrics: add this batch to the alignment's metrics.
            rows: what `sampled_rows` returned, where `grads` hold these rows only; else rows are sampled here.
            positives: with `sign_free` or `balance_labels`, `{task: booleans (B,)}`, the rows whose label is positive;
                a missing task has no such labels.
        """
        checked = self._checked(grads, masks, row_task, rows, positives)
        return super().__call__(*checked[:3], update_metrics=update_metrics, factors=checked[3], positives=checked[4])

    def checked_rows(
        self, grads: Any, masks: Any = None, row_task: Any = None, rows: Any = None, positives: Any = None
    ) -> TaskRows:
        """Return the rows that a call with these arguments would compare."""
        return self.rows(*self._checked(grads, masks, row_task, rows, positives))

    def _checked(self, grads: Any, masks: Any, row_task: Any, rows: Any, positives: Any) -> tuple[Any, ...]:
        """Return what `rows` takes, after building and sampling."""
        flat = gradients_by_task(grads)
        first = next(iter(flat.values()))
        self._build_on(flat)
        if self.reach == "shared":
            if not isinstance(grads, TaskGradients):
                raise UserError(
                    'reach="shared" needs the gradients as task_gradients returned them; '
                    f"received a plain {type(grads).__name__}, which no longer knows the shared tensor."
                )
            flat = {task: tf.nest.flatten(of_task) for task, of_task in grads.limited().items()}
        if self.needs_total_steps:
            self.set_total_steps(None)
        if (row_task is None) != (self.row_task is None):
            raise UserError(
                f'The alignment was made with row_task="{self.row_task}" and needs row_task= when it is called.'
                if row_task is None
                else "row_task= is given, but the alignment was made without row_task; name the input there."
            )
        masks, positives = (
            None if given is None else {task: tf.cast(of_task, tf.bool) for task, of_task in given.items()}
            for given in (masks, positives)
        )
        row_task = None if row_task is None else tf.convert_to_tensor(row_task)
        factors = self._factors(grads)
        if rows is None:
            rows = self.sampled_rows(tf.shape(first[0])[0])
            if rows is not None:
                flat, factors = gather_rows(flat, rows) or {}, None
        if rows is not None:
            masks, positives = gather_rows(masks, rows), gather_rows(positives, rows)
            row_task = None if row_task is None else tf.gather(row_task, rows)
        return flat, masks, row_task, factors, positives

    def _factors(self, grads: Any) -> dict[str, Factors] | None:
        """Return the gradients' factors where they say all, and where this alignment takes them."""
        factors = grads.factors if isinstance(grads, TaskGradients) and self.reach == "all" else None
        return factors if factors is not None and self.takes_factors(factors) else None

    def takes_factors(self, factors: Mapping[str, Factors]) -> bool:
        """Whether `align` looks at the factors of `TaskRows` instead of its gradients, where it is given these."""
        return False

    def call(
        self,
        grads: Any,
        masks: Any = None,
        row_task: Any = None,
        update_metrics: bool = False,
        factors: Any = None,
        positives: Any = None,
    ) -> Any:
        """Return the alignment loss of gradients that `__call__` has checked."""
        rows = self.rows(grads, masks, row_task, factors, positives)
        loss = self.align(rows, update_metrics)
        due = self.is_due
        if due is not True:  # MultiTaskModel leaves the whole step out; an own loop calls all the same.
            loss = tf.where(due, loss, tf.zeros_like(loss))
        # XLA drops assertions; a loss that is not a number still tells of a row_task out of range.
        return loss if rows.valid is None else tf.where(rows.valid, loss, tf.constant(float("nan"), loss.dtype))

    def align(self, rows: TaskRows, update_metrics: bool) -> tf.Tensor:
        """Return the alignment loss of `rows`; the method itself, given by each alignment."""
        raise UserError(f"{type(self).__name__} does not implement align(rows, update_metrics).")

    def model_loss(self, rows: TaskRows) -> tf.Tensor:
        """Return what the model minimises at strength 1, as a function of `rows`; checks differentiate it."""
        return self.align(rows, update_metrics=False)

    def transform(self, grads: Mapping[str, Any]) -> dict[str, Any]:
        """Return what reaches the shared tensors in place of `grads`, of the tasks whose gradients it changes.

        Args:
            grads: `{task: gradient}`, each a tensor (B, ...) or a list or dict of them, of all rows.

        Returns:
            The same structure, in float32 or better, stopped; towers keep their own gradients. `MultiTaskModel` puts
            them in place in the steps in which the alignment takes part, own loops by
            `gradalign.gradients.replace_task_gradients`.
        """
        return {}

    @property
    def transforms(self) -> bool:
        """Whether this kind of alignment changes the gradients that reach the shared tensors."""
        return type(self).transform is not Alignment.transform

    @property
    def updates_ahead(self) -> int:
        """How many times the alignment's own weights descend `own_loss` before the step that updates all."""
        return 0

    def own_loss(self, rows: TaskRows) -> tf.Tensor:
        """Return what the alignment's own weights descend, for rows whose gradients are stopped."""
        raise UserError(f"{type(self).__name__} does not implement own_loss(rows), which updates_ahead asks for.")

    def rows(
        self,
        grads: dict[str, list[tf.Tensor]],
        masks: Mapping[str, Any] | None,
        row_task: Any,
        factors: Mapping[str, Factors] | None = None,
        positives: Mapping[str, Any] | None = None,
    ) -> TaskRows:
        """Return the normalised rows of the aligned tasks, and which of them count."""
        masks, positives = self._known("masks", masks), self._known("positives", positives, self.needs_positives)
        assert self.all_tasks is not None and (row_task is None or self.row_task is not None)
        own, valid = ({}, None) if row_task is None else own_rows(str(self.row_task), row_task, self.all_tasks)
        found: list[Any] = []
        kept, positive = [], []
        for task in self.aligned_tasks:
            if task not in grads:
                raise UserError(f'There is no gradient for task "{task}"; received {", ".join(grads)}.')
            # What is as large as the gradient is left alone where its factors are known.
            g = self._joined(grads[task]) if factors is None else factors[task].inner
            is_kept = nonzero_rows(g) if factors is None else factors[task].nonzero_rows()
            labelled = labelled_rows(task, masks.get(task), own.get(task), g)
            if labelled is not None:
                is_kept = tf.logical_and(is_kept, labelled)
            kept.append(is_kept)
            if factors is None:
                found.append(normalize_rows(g, is_kept, self.normalize))
            else:
                found.append(normalize_factors(factors[task], is_kept, self.normalize))
            of_task = labelled_rows(task, positives.get(task), None, g)
            positive.append(tf.zeros_like(is_kept) if of_task is None else of_task)
            if self.sign_free and of_task is not None:
                found[-1] = turned(found[-1], of_task)
        classes = tf.stack(positive) if self.balance_labels else None
        if factors is None:
            return TaskRows(tf.stack(found), tf.stack(kept), valid, positives=classes)
        return TaskRows(None, tf.stack(kept), valid, found, positives=classes)

    @property
    def needs_positives(self) -> bool:
        """Whether a call has to say which labels are positive."""
        return self.sign_free or self.balance_labels

    def kept_rows(self, rows: TaskRows) -> dict[str, tf.Tensor]:
        """Return `{task: booleans (B, ...)}`: the rows of each aligned task that the alignment sees."""
        return dict(zip(self.aligned_tasks, tf.unstack(rows.kept), strict=True))

    def rows_of(
        self, grads: Mapping[str, Any], masks: Any = None, row_task: Any = None, positives: Any = None
    ) -> TaskRows:
        """Return the rows of task gradients in any structure, as `task_gradients` gives them."""
        return self.rows(gradients_by_task(grads), masks, row_task, positives=positives)

    def _known(self, name: str, by_task: Mapping[str, Any] | None, needed: bool = False) -> Mapping[str, Any]:
        assert self.all_tasks is not None
        if needed and by_task is None:
            raise UserError(
                "sign_free and balance_labels need to know the labels: pass positives={task: booleans (B,)}, True "
                "where a row's label is positive."
            )
        for task in by_task or {}:
            if task not in self.all_tasks:
                raise UserError(f'{name} names an unknown task "{task}".{nearest(task, self.all_tasks)}')
        return by_task or {}

    def _joined(self, parts: list[tf.Tensor]) -> tf.Tensor:
        parts = [at_least_float32(g) for g in parts]
        if self.per == "row":
            parts = [g if g.shape.rank == 2 else tf.reshape(g, [-1, math.prod(g.shape[1:])]) for g in parts]
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; a schedule that is a function has to be registered with Keras."""
        schedule = self.schedule
        return {
            "name": self.name,
            "trainable": self.trainable,
            "weight": self.weight,
            "normalize": self.normalize,
            "schedule": schedule
            if isinstance(schedule, (str, float))
            else keras.saving.serialize_keras_object(schedule),
            "total_steps": self.given_total_steps,
            "tasks": self.tasks,
            "row_task": self.row_task,
            "reach": self.reach,
            "per": self.per,
            "fraction": self.fraction,
            "every": self.every,
            "sign_free": self.sign_free,
            "balance_labels": self.balance_labels,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make an alignment of what `get_config` returned."""
        schedule = config.get("schedule")
        if isinstance(schedule, Mapping):
            config = {**config, "schedule": keras.saving.deserialize_keras_object(schedule)}
        return cls(**config)


def _dtype(tensors: list[tf.Tensor]) -> str:
    return "float64" if any(t.dtype == tf.float64 for t in tensors) else "float32"
