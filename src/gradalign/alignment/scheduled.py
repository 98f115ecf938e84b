"""When an alignment takes part, and how strongly: the position in the schedule is a variable, which a trace follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.arguments import is_count, not_negative, share_of_rows
from gradalign.alignment.sampling import random_rows
from gradalign.alignment.schedules import needs_total_steps, schedule_value, validated_schedule
from gradalign.errors import UserError

__all__ = ["Scheduled"]


class Scheduled(keras.layers.Layer):
    """Base class of `Alignment`: weight, schedule, and the share of steps and rows that an alignment sees.

    Arguments are those of `AdversarialAlignment`.

    Attributes:
        damping: a variable, 1 at first, that multiplies the strength; what watches over training assigns it, such as
            `gradalign.callbacks.AdversaryGuard`. Saved with the model; no function is traced anew for it.
    """

    def __init__(
        self,
        weight: float,
        *,
        schedule: Any,
        total_steps: int | None,
        fraction: float,
        every: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.weight = not_negative("weight", weight)
        self.schedule = validated_schedule(schedule)
        self.fraction = share_of_rows(fraction)
        if not is_count(every):
            raise UserError(f"every is a whole number of steps, 1 or more; received {every!r}.")
        self.every = int(every)
        self._sampling = keras.random.SeedGenerator() if self.fraction < 1.0 else None
        if total_steps is not None and not is_count(total_steps):
            raise UserError(f"total_steps is the number of optimizer steps, 1 or more; received {total_steps!r}.")
        self.given_total_steps = None if total_steps is None else int(total_steps)
        self._fixed_strength: float | None = None
        self.step = self._counter("step", 0)
        self.total_steps = self._counter("total_steps", self.given_total_steps or 0)
        self.damping = self.add_weight(
            name="damping",
            shape=(),
            dtype="float64",
            initializer="ones",
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )

    def _counter(self, name: str, value: int) -> Any:
        return self.add_weight(
            name=name,
            shape=(),
            dtype="int64",
            initializer=keras.initializers.Constant(value),
            trainable=False,
            aggregation="only_first_replica",
        )

    @property
    def strength(self) -> tf.Tensor:
        """`weight × every × schedule(progress) × damping` now, a float64 scalar."""
        if self._fixed_strength is not None:
            return tf.constant(self._fixed_strength, tf.float64)
        return self.scheduled_strength * tf.convert_to_tensor(self.damping)

    @property
    def scheduled_strength(self) -> tf.Tensor:
        """`weight × every × schedule(progress)` now: what the strength is without damping, a float64 scalar."""
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
        """Start the schedule again, over `total_steps` or what the constructor or the next `fit` says, undamped."""
        self.step.assign(0)
        self.damping.assign(1.0)
        self.total_steps.assign(int(total_steps or self.given_total_steps or 0))
