"""The base of optimizers that touch only the table rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.sparse import sum_repeated_rows
from gradalign.optimizers.arguments import learning_rate_of, not_negative

__all__ = ["RowWiseOptimizer"]


class RowWiseOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras ships no types
    """An optimizer whose step costs what a batch holds, not what a table holds.

    A gradient that comes as rows (`tf.IndexedSlices`, as lookups give) updates these rows and their state, each once,
    its parts summed; every other row and its state stay as they are, whereas Keras' Adam moves the whole table. A dense
    gradient updates everything. A subclass implements `initial_state` and `update`.

    Args:
        learning_rate: a number or a Keras schedule.
        weight_decay: decoupled decay of the rows that a step touches: `row -= learning_rate * weight_decay * row`.
        clipnorm: largest Euclidean norm of one variable's gradient, repeated rows summed.
        clipvalue: largest absolute entry, repeated rows summed.
        global_clipnorm: largest norm of all gradients together; one of the three at most.
        name: of the optimizer.
        use_ema, gradient_accumulation_steps: refused, because both would need every row of a table in every step.

    Raises:
        UserError: for an argument that is refused or out of range.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        loss_scale_factor: float | None = None,
        use_ema: bool = False,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        kind = type(self).__name__
        if use_ema:
            raise UserError(
                f"{kind} keeps no averaged weights (use_ema), which change every row of a table every step."
            )
        if gradient_accumulation_steps:
            raise UserError(
                f"{kind} does not accumulate gradients, which would make those of a table dense; "
                "use larger batches, or Keras' own optimizer."
            )
        if loss_scale_factor:
            raise UserError(
                f"{kind} takes no loss_scale_factor, which Keras cannot take off a table's gradient; put a "
                "LossScaleOptimizer around it."
            )
        # Keras' own clipping and decay would make a table's gradient dense or touch every row: it is not told of them.
        super().__init__(learning_rate=learning_rate_of(kind, learning_rate), name=name, **kwargs)
        limits = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
        for argument, value in {**limits, "weight_decay": weight_decay}.items():
            if value is not None:
                not_negative(kind, argument, value)
        if sum(value is not None for value in limits.values()) > 1:
            raise UserError(f"{kind} takes one of clipnorm, clipvalue and global_clipnorm; received {limits}.")
        self.limits = limits
        self.decay = weight_decay
        self.slots: dict[str, list[Any]] = {}

    def build(self, variables: list[Any]) -> None:
        """Make the state of every variable."""
        if self.built:
            return
        super().build(variables)
        for name, (start, per_row) in self.initial_state().items():
            initializer = keras.initializers.Constant(start)
            self.slots[name] = [
                self.add_variable(v.shape[:1], initializer, v.dtype, name=f"{v.path.replace('/', '_')}_{name}")
                if per_row and len(v.shape) > 1
                else self.add_variable_from_reference(v, name=name, initializer=initializer)
                for v in variables
            ]

    def initial_state(self) -> dict[str, tuple[float, bool]]:
        """Return `{name: (initial value, whether it is one number a row)}`; given by each optimizer."""
        raise UserError(f"{type(self).__name__} does not implement initial_state().")

    def update(
        self, gradient: tf.Tensor, state: dict[str, tf.Tensor], learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return what to take off the rows, and their new state.

        Args:
            gradient: (rows, ...), each row once.
            state: the rows' state by name; (rows, ...) or, where it is one number a row, (rows, 1, ...).
            learning_rate: scalar.
        """
        raise UserError(f"{type(self).__name__} does not implement update(gradient, state, learning_rate).")

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Sum repeated rows, clip, and update."""
        super().apply(self._clipped([sum_repeated_rows(g) for g in grads]), trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update the rows that `gradient` holds; Keras calls this for every variable, on every replica."""
        rows, values = _row_totals(gradient)
        values = tf.cast(values, variable.dtype)
        learning_rate = tf.cast(learning_rate, variable.dtype)
        index = self._get_variable_index(variable)
        slots = {name: of_name[index] for name, of_name in self.slots.items()}
        narrow = {name for name, slot in slots.items() if len(slot.shape) < len(variable.shape)}
        state = {name: _read(slot, rows) for name, slot in slots.items()}
        state = {name: _like(values, of_name) if name in narrow else of_name for name, of_name in state.items()}
        change, state = self.update(values, state, learning_rate)
        current = _read(variable, rows)
        if self.decay is not None and self._use_weight_decay(variable):
            change += learning_rate * tf.cast(self.decay, variable.dtype) * current
        for name, slot in slots.items():
            new = state[name]
            if name in narrow:  # back to (rows,)
                new = tf.reshape(new, tf.shape(new)[:1])
            self.assign(slot, _as_rows(new, rows))
        # Assigned, not subtracted: a row that stands there twice is written twice with one and the same value.
        self.assign(variable, _as_rows(current - change, rows))

    def _clipped(self, gradients: list[Any]) -> list[Any]:
        value, norm, total = (self.limits[name] for name in ("clipvalue", "clipnorm", "global_clipnorm"))
        if value is not None:
            return [_on_values(g, lambda v: tf.clip_by_value(v, -value, value)) for g in gradients]
        if norm is not None:
            return [_on_values(g, lambda v: tf.clip_by_norm(v, norm)) for g in gradients]
        if total is not None:
            return list(tf.clip_by_global_norm(gradients, total)[0])
        return gradients

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = super().get_config()
        for name in (
            "use_ema",
            "ema_momentum",
            "ema_overwrite_frequency",
            "gradient_accumulation_steps",
            "loss_scale_factor",
        ):
            config.pop(name, None)
        return {**config, **self.limits, "weight_decay": self.decay}


def _read(variable: Any, rows: tf.Tensor | None) -> tf.Tensor:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return tf.convert_to_tensor(value) if rows is None else tf.gather(value, rows)


def _row_totals(gradient: Any) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Return the rows as they come, each with the sum over all its parts; `None` and all values where it is dense.

    Not each row once: under XLA, `unique` of rows that are unique already pads them with repetitions.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return None, gradient
    different, positions = tf.unique(gradient.indices)
    totals = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(different))
    return gradient.indices, tf.gather(totals, positions)


def _like(values: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """(rows,) -> (rows, 1, ...), of the rank of `values`."""
    return tf.reshape(numbers, [-1, *[1] * (values.shape.rank - 1)])


def _as_rows(values: tf.Tensor, rows: tf.Tensor | None) -> Any:
    return values if rows is None else tf.IndexedSlices(values, rows)


def _on_values(gradient: Any, function: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)
