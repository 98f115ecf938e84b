"""XLA for the dense part of a step: the base is cut at its tables, whose lookups and updates stay outside.

XLA knows neither text nor ragged ids, reads row 0 for an id outside of a table, and pads what row-wise optimizers sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from gradalign.dense_cut import Rest, adds_a_loss, is_table
from gradalign.errors import UserError
from gradalign.gradients._keras_compat import functional_inputs, mask_of, runs_xla
from gradalign.tasks import Batch

__all__ = ["DensePart", "chosen_mode"]


def chosen_mode(
    jit_compile: Any, obstacle: str | None, devices: Iterable[str] | None = None, *, loops: bool = False
) -> Any:
    """Return what is compiled: `"dense"`, or what Keras takes as `jit_compile`.

    `"auto"` compiles nothing where there is no accelerator, since on a CPU the compiled step takes longer, nor where
    XLA would compile loops anew in every step. Else it is `"dense"` if the base can be cut at its tables, and Keras'
    choice if not.

    Args:
        jit_compile: what `MultiTaskModel.compile` was given.
        obstacle: what `gradalign.dense_cut.dense_obstacle` found.
        devices: the kinds of devices, such as `"GPU"`; those that TensorFlow sees where it is `None`.
        loops: whether the second derivative goes through a loop.

    Raises:
        UserError: for an unknown mode, and for `"dense"` where there is an obstacle.

    Example:
        >>> chosen_mode("auto", None, ["CPU"]), chosen_mode("auto", None, ["CPU", "GPU"])
        (False, 'dense')
        >>> chosen_mode("auto", "it has no table", ["CPU", "GPU"])
        'auto'
    """
    is_named = isinstance(jit_compile, str) and jit_compile in ("auto", "dense")
    if not is_named and jit_compile is not None and not isinstance(jit_compile, bool):
        raise UserError(f'jit_compile is True, False, "auto" or "dense"; received {jit_compile!r}.')
    if jit_compile == "dense" and obstacle is not None:
        raise UserError(f'jit_compile="dense" cannot be had, since {obstacle}.')
    if jit_compile != "auto":
        return jit_compile
    if devices is None:
        devices = [device.device_type for device in tf.config.get_visible_devices()]
    if set(devices) <= {"CPU"} or loops:
        return False
    return "dense" if obstacle is None and runs_xla() else "auto"


class DensePart:
    """Gradients of a step whose dense part is compiled: the lookups run before it, and their gradients follow.

    Args:
        base: a model that `dense_obstacle` finds nothing in.

    Attributes:
        compiled: the compiled functions, by whether the alignment takes part.
    """

    def __init__(self, base: keras.Model) -> None:
        self._rest = Rest(base)
        symbols = [symbol for symbol, _ in self._rest.boundary]
        self._front = keras.Model(functional_inputs(base), symbols, name=f"{base.name}_lookups")
        self._tasks = list(self._rest.outputs)
        self.compiled: dict[bool, Any] = {}

    def gradients(
        self, through: Callable[..., list[Any]], batch: Batch, variables: list[Any], *, aligned: bool
    ) -> list[Any]:
        """Return the gradients of `variables`; a table's is `tf.IndexedSlices`.

        Args:
            through: takes base, batch, variables, `aligned` and the tensors that the base starts from, and returns the
                gradients of the variables and of these tensors.
            batch: what the base takes, and the labels.
            variables: what is trained.
            aligned: whether the alignment takes part.
        """
        with tf.GradientTape() as tape:
            tensors = tf.nest.flatten(self._front(batch.inputs, training=True))
        if len(self._front.losses) > sum(v.regularizer is not None for v in self._front.trainable_variables):
            raise UserError(f'jit_compile="dense" cannot be had, since {adds_a_loss(self._front.name)}.')
        row_task = batch.row_task
        if row_task is not None and row_task.dtype == tf.string:
            row_task = _numbers(row_task, self._tasks)
        if aligned not in self.compiled:
            self.compiled[aligned] = self._compile(through, variables, aligned)
        found = self.compiled[aligned](batch._replace(inputs=tensors, row_task=row_task), [*map(mask_of, tensors)])
        looked_up = list(zip(self._looked_up(tensors), found[len(variables) :], strict=True))
        targets = [tensor for tensor, g in looked_up if g is not None]
        of_tables = tape.gradient(targets, variables, output_gradients=[g for _, g in looked_up if g is not None])
        return [_sum(*both) for both in zip(found[: len(variables)], of_tables, strict=True)]

    def _compile(self, through: Callable[..., list[Any]], variables: list[Any], aligned: bool) -> Any:
        def dense_part(batch: Batch, masks: list[Any]) -> list[Any]:
            def rest(tensors: list[Any], training: bool) -> Any:
                return self._rest(tensors, masks=masks, training=training)

            return through(rest, batch, variables, aligned=aligned, tensors=self._looked_up(batch.inputs))

        return tf.function(dense_part, jit_compile=True, autograph=False)

    def _looked_up(self, tensors: list[Any]) -> list[Any]:
        return [t for t, (_, made_by) in zip(tensors, self._rest.boundary, strict=True) if is_table(made_by)]


def _numbers(names: Any, tasks: list[str]) -> tf.Tensor:
    """Return the number of each task that is named, -1 for an unknown name: XLA knows no text."""
    found = tf.equal(tf.reshape(names, [-1, 1]), tf.constant([tasks]))
    return tf.where(tf.reduce_any(found, axis=1), tf.argmax(found, axis=1), -1)


def _sum(of_rest: Any, of_lookups: Any) -> Any:
    """Return the whole gradient of a variable; that of a table is not dense unless the rest uses the table, too."""
    if of_rest is None or of_lookups is None:
        return of_lookups if of_rest is None else of_rest
    return tf.convert_to_tensor(of_rest) + tf.convert_to_tensor(of_lookups)
