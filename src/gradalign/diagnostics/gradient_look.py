"""One look at a model in training: the figures of its tasks' gradients on a fixed batch, from one traced function."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment import AdversarialAlignment
from gradalign.alignment.rows import TaskRows
from gradalign.diagnostics.gradient_figures import (
    label_aware_chance,
    length,
    named_right,
    pairwise_cosines,
    root_mean_square,
    whole_rows,
)
from gradalign.errors import UserError
from gradalign.gradients.normalization import at_least_float32
from gradalign.gradients.recording import find_layers, record_outputs
from gradalign.gradients.task_gradients import TaskTape
from gradalign.tasks import Forward, losses_by_task, own_inputs, predictions_by_task

__all__ = ["GradientLook"]


class GradientLook:
    """Looks at a batch of rows, in inference mode; a look changes nothing of the model.

    The figures and their formulas are those of `gradalign.callbacks.GradientMonitor`.

    Args:
        model: a compiled `MultiTaskModel` that knows its shared tensor, with all weights.
        batch: `(x, y, sample_weight)` of tensors; weights may be None.
    """

    def __init__(self, model: Any, batch: Any) -> None:
        self._model, self._batch = model, batch
        self._layers = find_layers(model.base, model.shared)
        self._losses = losses_by_task(model.loss, model.tasks, [])
        self._names: list[str] = []
        # A base that runs as plain Python may not be one that can be traced.
        self._run: Any = self._stacked if model.run_eagerly else tf.function(self._stacked, autograph=False)

    def __call__(self) -> dict[str, float]:
        """Return `{name: figure}` of the model as it is now."""
        numbers = self._run(self._batch).numpy().tolist()
        found = dict(zip(self._names, numbers, strict=True))
        if self._model.alignment is not None:
            strength = float(self._model.alignment.strength)
            ratio = strength * found["second_to_first_order_ratio"]
            found["second_to_first_order_ratio_at_strength"] = ratio
            found["alignment_share"] = ratio / (1.0 + ratio)
            found["alignment_strength"] = strength
        return found

    def _stacked(self, batch: Any) -> tf.Tensor:
        """Return all figures in one tensor, so that a look waits for the device once."""
        # What layers assign, draw or add as a loss stays in the scope.
        with keras.StatelessScope():
            figures = self._figures(batch)
        self._names = list(figures)
        return tf.stack(list(figures.values()))

    def _figures(self, batch: Any) -> dict[str, tf.Tensor]:
        model, alignment = self._model, self._model.alignment
        x, y, sample_weight = batch
        inputs, column = own_inputs(model.base, x, None if alignment is None else alignment.row_task)
        forward, outer = Forward(), tf.GradientTape(persistent=True, watch_accessed_variables=False)
        forward.tape, forward.row_task = TaskTape(), column

        def watch(shared: tf.Tensor) -> tf.Tensor:
            assert forward.tape is not None
            outer.watch(shared)
            return forward.tape.watch(shared)

        with outer:
            with forward.tape, record_outputs(self._layers, watch) as recorded:
                predictions = predictions_by_task(model.base, model.base(inputs, training=False))
                # Where tasks are chained, a prediction depends on another one; its copy goes into its own loss alone.
                predictions = {task: tf.identity(predictions[task]) for task in self._losses}
                outer.watch(predictions)
                forward.add_losses(self._losses, predictions, y, sample_weight, model.tasks)
            forward.shared = [tensor for of_layer in recorded.values() for tensor in of_layer]
            gradients = forward.tape.gradients(forward.totals, forward.shared, allow_unused=True)
            weighted = model.weighted_losses(forward)
            if alignment is not None:
                aligned = {task: gradients[task] for task in alignment.aligned_tasks}
                positives = model.positives_of(forward)
                rows = alignment.rows_of(aligned, forward.masks, column, positives)
                with alignment.fixed_strength(1.0):
                    # Of the sum over rows: float16 would lose the gradient of the mean.
                    loss = alignment.model_loss(rows)
                    loss *= tf.cast(forward.batch_rows, loss.dtype)
        # `sum_t c_t L_t` is a sum of the totals times these, so its gradient needs no further pass.
        factors = outer.gradient(weighted, forward.totals)
        figures = self._of_tasks(forward, gradients)
        if alignment is not None:
            at_shared = outer.gradient(loss, forward.shared, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            second = length(at_shared) / tf.cast(forward.batch_rows, tf.float64)
            figures["second_to_first_order_ratio"] = second / length(_weighted_sum(gradients, factors))
            if isinstance(alignment, AdversarialAlignment):
                totals = [forward.totals[task] for task in alignment.aligned_tasks]
                slopes = outer.gradient(totals, {task: predictions[task] for task in alignment.aligned_tasks})
                figures |= _of_discriminator(alignment, rows, slopes)
        return figures

    def _of_tasks(self, forward: Forward, gradients: Any) -> dict[str, tf.Tensor]:
        tasks, alignment = list(self._losses), self._model.alignment
        labelled = [forward.masks[task] for task in tasks]
        figures = {
            f"{task}_gradient_norm": root_mean_square(whole_rows(gradients[task]), forward.masks[task])
            for task in tasks
        }
        per = "row" if alignment is None else alignment.per
        cosines, conflicting = pairwise_cosines([whole_rows(gradients[task], per) for task in tasks], labelled)
        for t, u in itertools.combinations(range(len(tasks)), 2):
            pair = f"{tasks[t]}_{tasks[u]}"
            if f"{pair}_gradient_cosine" in figures:
                raise UserError(f'Two pairs of tasks have the name "{pair}" in the logs; rename one of their tasks.')
            figures[f"{pair}_gradient_cosine"] = cosines[t, u]
            figures[f"{pair}_conflicting_rows"] = conflicting[t, u]
        return figures


def _of_discriminator(
    alignment: AdversarialAlignment, rows: TaskRows, slopes: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    tasks = alignment.aligned_tasks
    right, cross_entropy = named_right(alignment.scores(rows), rows)
    figures = {f"{task}_discriminator_accuracy": right[t] for t, task in enumerate(tasks)}
    figures |= {f"{task}_discriminator_cross_entropy": cross_entropy[t] for t, task in enumerate(tasks)}
    figures["discriminator_chance"] = tf.constant(alignment.chance_accuracy, tf.float64)
    codes, classes = _codes(slopes, alignment.sign_free)
    figures["discriminator_label_aware_chance"] = label_aware_chance(codes, classes, rows)
    return figures


def _codes(slopes: dict[str, tf.Tensor], sign_free: bool) -> tuple[list[tf.Tensor], int]:
    """Return what each aligned task's labels make of its rows, and how many such codes there are.

    For one output the sign of the loss's derivative by it, which is that by its logit; for several the one at which it
    is lowest, the row's class.

    Args:
        slopes: `{task: derivatives by its outputs (B, ...)}`.
        sign_free: gradients of tasks with one output are turned so that the label does not show.
    """
    codes, classes = [], 2
    for slope in slopes.values():
        width = slope.shape[1:].num_elements()
        by_row = tf.reshape(slope, [-1, width])
        classes = max(classes, width)
        if width > 1:
            codes.append(tf.argmin(by_row, axis=1, output_type=tf.int32))
        elif sign_free:
            codes.append(tf.zeros(tf.shape(by_row)[:1], tf.int32))
        else:
            codes.append(tf.cast(by_row[:, 0] < 0, tf.int32))
    return codes, classes


def _weighted_sum(gradients: Any, factors: Any) -> list[tf.Tensor]:
    """Return the gradient of `sum_t c_t L_t` at each shared tensor; a factor is None where a task does not reach it."""
    parts = [
        [tf.cast(factor, tf.float64) * tf.cast(at_least_float32(g), tf.float64) for g in gradients[task]]
        for task, factor in factors.items()
        if factor is not None
    ]
    return [tf.add_n(list(at_one)) for at_one in zip(*parts, strict=True)]
