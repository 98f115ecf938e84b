"""The contract of an alignment: `(grads, masks) -> scalar`, differentiable, added to the task losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.arguments import are_names, gradients_by_task, is_count, not_negative, one_of, share_of_rows
from gradalign.alignment.rows import TaskRows, labelled_rows, own_rows
from gradalign.alignment.sampling import gather_rows, random_rows
from gradalign.alignment.schedules import needs_total_steps, schedule_value, validated_schedule
from gradalign.errors import UserError, nearest
from gradalign.gradients.factors import Factors, normalize_factors
from gradalign.gradients.normalization import METHODS, PER, at_least_float32, nonzero_rows, normalize_rows
from gradalign.gradients.task_gradients import REACHES, TaskGradients

__all__ = ["Alignment"]


class Alignment(keras.layers.Layer):
    """Base class of alignments: settings, schedule and the rows that an alignment compares.

    A subclass implements `align(rows, update_metrics) -> scalar` and, where it has weights, `build_aligner(width)`.
    Arguments are those of `AdversarialAlignment`.
    """

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
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        # The alignment is exempt from mixed precision: gradients are small numbers.
        kwargs.setdefault("dtype", keras.config.floatx())
        super().__init__(name=name, autocast=False, **kwargs)
        self.weight = not_negative("weight", weight)
        self.normalize = one_of("normalize", normalize, METHODS)
        self.schedule = validated_schedule(schedule)
        self.reach = one_of("reach", reach, REACHES)
        self.per = one_of("per", per, PER)
        self.fraction = share_of_rows(fraction)
        if not is_count(every):
            raise UserError(f"every is a whole number of steps, 1 or more; received {every!r}.")
        self.every = int(every)
        self._sampling = keras.random.SeedGenerator() if self.fraction < 1.0 else None
        if total_steps is not None and not is_count(total_steps):
            raise UserError(f"total_steps is the number of optimizer steps, 1 or more; received {total_steps!r}.")
        if tasks is not None and not are_names(tasks):
            raise UserError(f"tasks is a list of different task names; received {tasks!r}.")
        if row_task is not None and not isinstance(row_task, str):
            raise UserError(f"row_task is the name of the input that names each row's task; received {row_task!r}.")
        self.given_total_steps = None if total_steps is None else int(total_steps)
        self.tasks = None if tasks is None else list(tasks)
        self.row_task = row_task
        # Of all tasks the model has, in the model's order; set when the alignment is built.
        self.all_tasks: list[str] | None = None
        self._build_arguments: dict[str, Any] | None = None
        self._fixed_strength: float | None = None
        self.step = self._counter("step", 0)
        self.total_steps = self._counter("total_steps", self.given_total_steps or 0)

    def _counter(self, name: str, value: int) -> Any:
        return self.add_weight(
            name=name,
            shape=(),
            dtype="int64",
            initializer=keras.initializers.Constant(value),
            trainable=False,
            aggregation="only_first_replica",
        )

    # --- schedule -----------------------------------------------------------------------------------------------

    @property
    def strength(self) -> tf.Tensor:
        """`weight × every × schedule(progress)` now, a float64 scalar."""
        if self._fixed_strength is not None:
            return tf.constant(self._fixed_strength, tf.float64)
        steps = tf.cast(tf.convert_to_tensor(self.step), tf.float64)
        total = tf.cast(tf.convert_to_tensor(self.total_steps), tf.float64)
        progress = tf.minimum(steps / tf.maximum(total, 1.0), 1.0)
        return tf.constant(self.weight * self.every, tf.float64) * schedule_value(self.schedule, progress)

    @property
    def is_due(self) -> Any:
        """Whether the alignment takes part in the next step; a boolean scalar where `every` is above 1."""
        if self.every == 1 or self._fixed_strength is not None:
            return True
        return tf.equal(tf.convert_to_tensor(self.step) % self.every, 0)

    def sampled_rows(self, count: Any) -> tf.Tensor | None:
        """Return the numbers of the rows of a batch of `count` that the alignment sees next; `None` for all of them."""
        if self._sampling is None or self._fixed_strength is not None:
            return None
        return random_rows(count, self.fraction, self._sampling)

    @contextmanager
    def fixed_strength(self, strength: float) -> Iterator[None]:
        """Within the context the strength is `strength`, whatever the schedule says, on all rows; for checks."""
        self._fixed_strength = strength
        try:
            yield
        finally:
            self._fixed_strength = None

    @property
    def needs_total_steps(self) -> bool:
        """Whether the schedule cannot be followed yet because the total number of steps is unknown."""
        if self._fixed_strength is not None or not needs_total_steps(self.schedule):
            return False
        with tf.init_scope():
            return int(self.total_steps.value.numpy()) == 0

    def set_total_steps(self, total_steps: int | None) -> None:
        """Set the total number of optimizer steps where it is not known yet; `None` raises where it is needed."""
        if not self.needs_total_steps:
            return
        if total_steps is None:
            raise UserError(
                f"The schedule {self.schedule!r} needs the total number of steps, which this data does not tell: give "
                "total_steps= to the alignment, or steps_per_epoch= to fit, or a number as schedule."
            )
        self.total_steps.assign(int(total_steps))

    def advance(self) -> None:
        """Count one optimizer step; `MultiTaskModel` does it, an own loop calls it behind its optimizer."""
        self.step.assign_add(1)

    def reset_schedule(self, total_steps: int | None = None) -> None:
        """Start the schedule again, over `total_steps` or what the constructor or the next `fit` says."""
        self.step.assign(0)
        self.total_steps.assign(int(total_steps or self.given_total_steps or 0))

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
        self, grads: Any, masks: Any = None, row_task: Any = None, update_metrics: bool = False, rows: Any = None
    ) -> Any:
        """Return the alignment loss, a scalar.

        Args:
            grads: `{task: gradient}`, each a tensor (B, ...) or a list or dict of them, as `task_gradients` returns.
            masks: `{task: booleans (B,)}`, the rows that have the task's label; a missing task has all labels.
            row_task: with `row_task=` in the constructor, what that input says of each row, (B,) or (B, 1).
            update_metrics: add this batch to the alignment's metrics.
            rows: what `sampled_rows` returned, where `grads` hold these rows only; else rows are sampled here.
        """
        flat = gradients_by_task(grads)
        first = next(iter(flat.values()))
        self.build_for(list(flat), [g.shape.as_list() for g in first], _dtype(first))
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
        masks = None if masks is None else {task: tf.cast(mask, tf.bool) for task, mask in masks.items()}
        row_task = None if row_task is None else tf.convert_to_tensor(row_task)
        if rows is None:
            rows = self.sampled_rows(tf.shape(first[0])[0])
            flat = flat if rows is None else gather_rows(flat, rows) or {}
        factors = None
        if rows is not None:
            masks = gather_rows(masks, rows)
            row_task = None if row_task is None else tf.gather(row_task, rows)
        else:
            factors = self._factors(grads)
        return super().__call__(flat, masks, row_task, update_metrics=update_metrics, factors=factors)

    def _factors(self, grads: Any) -> dict[str, Factors] | None:
        """Return the gradients' factors where they say all, and where this alignment takes them."""
        factors = grads.factors if isinstance(grads, TaskGradients) and self.reach == "all" else None
        return factors if factors is not None and self.takes_factors(factors) else None

    def takes_factors(self, factors: Mapping[str, Factors]) -> bool:
        """Whether `align` looks at the factors of `TaskRows` instead of its gradients, where it is given these."""
        return False

    def call(
        self, grads: Any, masks: Any = None, row_task: Any = None, update_metrics: bool = False, factors: Any = None
    ) -> Any:
        """Return the alignment loss of gradients that `__call__` has checked."""
        rows = self.rows(grads, masks, row_task, factors)
        loss = self.align(rows, update_metrics)
        due = self.is_due
        if due is not True:  # MultiTaskModel leaves the whole step out; an own loop calls all the same.
            loss = tf.where(due, loss, tf.zeros_like(loss))
        # XLA drops assertions; a loss that is not a number still tells of a row_task out of range.
        return loss if rows.valid is None else tf.where(rows.valid, loss, tf.constant(float("nan"), loss.dtype))

    def align(self, rows: TaskRows, update_metrics: bool) -> tf.Tensor:
        """Return the alignment loss of `rows`; the method itself, given by each alignment."""
        raise UserError(f"{type(self).__name__} does not implement align(rows, update_metrics).")

    def rows(
        self,
        grads: dict[str, list[tf.Tensor]],
        masks: Mapping[str, Any] | None,
        row_task: Any,
        factors: Mapping[str, Factors] | None = None,
    ) -> TaskRows:
        """Return the normalised rows of the aligned tasks, and which of them count."""
        masks = self._masks(masks)
        assert self.all_tasks is not None and (row_task is None or self.row_task is not None)
        own, valid = ({}, None) if row_task is None else own_rows(str(self.row_task), row_task, self.all_tasks)
        found, kept = [], []
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
        if factors is None:
            return TaskRows(tf.stack(found), tf.stack(kept), valid)
        return TaskRows(None, tf.stack(kept), valid, found)

    def kept_rows(self, rows: TaskRows) -> dict[str, tf.Tensor]:
        """Return `{task: booleans (B, ...)}`: the rows of each aligned task that the alignment sees."""
        return dict(zip(self.aligned_tasks, tf.unstack(rows.kept), strict=True))

    def rows_of(self, grads: Mapping[str, Any], masks: Any = None, row_task: Any = None) -> TaskRows:
        """Return the rows of task gradients in any structure, as `task_gradients` gives them."""
        return self.rows(gradients_by_task(grads), masks, row_task)

    def _masks(self, masks: Mapping[str, Any] | None) -> Mapping[str, Any]:
        assert self.all_tasks is not None
        for task in masks or {}:
            if task not in self.all_tasks:
                raise UserError(f'masks names an unknown task "{task}".{nearest(task, self.all_tasks)}')
        return masks or {}

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
