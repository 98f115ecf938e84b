"""GREAT's gradient-alignment layers: the tasks' gradients are scaled on their way into the encoder, entry by entry.

Sinha, Chen, Badrinarayanan, Rabinovich, "Gradient Adversarial Training of Neural Networks" (GREAT), arXiv 1806.08028,
2018, multi-task learning. Between encoder and decoder each task has a layer that is the identity forward and acts on
the gradient that passes back; an auxiliary network names the task of a gradient; its reversed signal trains the layers
alone; and the layers are dropped at inference. In the notation of docs/design.md, section 1, with a tensor `w_t` of
ones at first for each task, of the width of a row:

    what reaches the shared tensor:  sum_t c_t / n_t  w_t ∘ g_ti   in place of   sum_t c_t / n_t  g_ti
    A = mean_t mean_i CE(D(R_a(N(w_t ∘ stop(g_ti)))), t)  +  anchor mean_t mean_d (w_td - 1)^2

`D` descends A, and so do all `w_t`, behind the reversal; the task losses reach neither. Nothing is differentiated
twice: encoder, towers and private embeddings get no gradient of A.

Deviations: `N`, the schedule and the equal weight of all tasks are ours, as in `AdversarialAlignment`. The anchor is
ours, too, and 0 unless asked for: under `N` nothing says how long a `w_t` is, an optimizer such as Adam moves it as
fast whatever `a` is, and without an anchor it drifts as long as the game lasts. Written after the paper's abstract and
descriptions of its layers, without its code, so its discriminator, widths and rates are not reproduced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.adversarial import AdversarialAlignment
from gradalign.alignment.arguments import gradients_by_task, not_negative
from gradalign.alignment.rows import TaskRows
from gradalign.gradients.factors import Factors
from gradalign.gradients.normalization import at_least_float32
from gradalign.gradients.replicas import summed_replicas
from gradalign.gradients.reversal import with_gradient_of

__all__ = ["GREATAlignment"]


@keras.saving.register_keras_serializable(package="gradalign")
class GREATAlignment(AdversarialAlignment):
    """Scale each task's gradient at the shared tensor so that a discriminator cannot tell the tasks apart.

    It works at first order, so it costs little more than the discriminator, and it reaches the encoder whatever the
    towers are made of, ReLU and l2 included. It changes what the encoder is trained on, and not the tasks' gradients
    themselves. The scales are `gradient_layers`, (T, D): a variable that `discriminator_optimizer` trains, beside the
    discriminator; they exist in training only, and `model.base` knows nothing of them.

    Args:
        weight: largest strength of the reversal, 0 or more; 0 trains the discriminator only, and gradients stay as
            they are.
        anchor: what the mean squared distance of the scales from one weighs, 0 or more; at 0, the reversed signal
            alone trains them.
        fraction: share of each batch's rows that the discriminator sees; all rows' gradients are scaled.
        discriminator, normalize, schedule, total_steps, tasks, row_task, per, objective, sign_free, balance_labels,
            label_smoothing, spectral_norm, discriminator_steps: as of `AdversarialAlignment`. A task that `tasks`
            leaves out keeps its gradient; `row_task` limits what the discriminator sees, not what is scaled.

    There is no `reach`, since there is no second-order path, nor `every`: a step without the layers would undo them.
    In a loop of your own, `transform(grads)` returns the scaled gradients, and
    `gradalign.gradients.replace_task_gradients` puts them in place.

    Raises:
        UserError: for a wrong argument, and when called, for gradients that do not fit it.

    Example:
        >>> from gradalign.gradients import replace_task_gradients, task_gradients
        >>> alignment = GREATAlignment(0.1, schedule=1.0)
        >>> x = tf.constant([[0.5, -1.0], [2.0, 1.0]])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     losses, grads = task_gradients(lambda s: {"click": s[:, 0] ** 2, "buy": s[:, 1] ** 3}, x)
        ...     loss = sum(tf.reduce_mean(of_task) for of_task in losses.values()) + alignment(grads)
        ...     _ = alignment.gradient_layers.assign([[3.0, 1.0], [1.0, 1.0]])
        ...     loss += replace_task_gradients(x, grads, alignment.transform(grads), {"click": 1 / 2, "buy": 1 / 2})
        >>> tape.gradient(loss, x).numpy().tolist()
        [[1.5, 1.5], [6.0, 1.5]]
    """

    second_order = False

    def __init__(
        self,
        weight: float = 0.1,
        *,
        anchor: float = 0.0,
        discriminator: Any = None,
        normalize: str = "batch",
        schedule: Any = "ganin",
        total_steps: int | None = None,
        tasks: list[str] | None = None,
        row_task: str | None = None,
        per: str = "row",
        fraction: float = 1.0,
        objective: Any = "reversal",
        sign_free: bool = False,
        balance_labels: bool = False,
        label_smoothing: float = 0.0,
        spectral_norm: bool = False,
        discriminator_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            weight,
            discriminator=discriminator,
            normalize=normalize,
            schedule=schedule,
            total_steps=total_steps,
            tasks=tasks,
            row_task=row_task,
            reach="all",
            per=per,
            fraction=fraction,
            every=1,
            objective=objective,
            sign_free=sign_free,
            balance_labels=balance_labels,
            label_smoothing=label_smoothing,
            spectral_norm=spectral_norm,
            discriminator_steps=discriminator_steps,
            **kwargs,
        )
        self.anchor = not_negative("anchor", anchor)
        self.gradient_layers: Any = None

    def build_aligner(self, width: int, dtype: str) -> None:
        """Make the discriminator, and the scales, ones."""
        super().build_aligner(width, dtype)
        self.gradient_layers = self.add_weight(
            name="gradient_layers",
            shape=(len(self.aligned_tasks), width),
            dtype=dtype,
            initializer="ones",
            autocast=False,
        )

    def transform(self, grads: Mapping[str, Any]) -> dict[str, Any]:
        """Return `w_t ∘ g_t` of the aligned tasks, in the structure of `grads`, float32 or better, stopped."""
        flat = gradients_by_task(grads)
        self._build_on(flat)
        scaled = {task: self._scaled(task, flat[task]) for task in self.aligned_tasks if task in flat}
        return {
            task: tf.nest.pack_sequence_as(grads[task], [tf.stop_gradient(part) for part in parts])
            for task, parts in scaled.items()
        }

    def rows(
        self,
        grads: dict[str, list[tf.Tensor]],
        masks: Mapping[str, Any] | None,
        row_task: Any,
        factors: Mapping[str, Factors] | None = None,
        positives: Mapping[str, Any] | None = None,
    ) -> TaskRows:
        """Return the normalised rows of the scaled gradients: functions of the scales, and of nothing else."""
        stopped = {task: [tf.stop_gradient(part) for part in parts] for task, parts in grads.items()}
        if factors is None:
            scaled = {t: self._scaled(t, parts) if t in self.aligned_tasks else parts for t, parts in stopped.items()}
            return super().rows(scaled, masks, row_task, None, positives)
        by_task = {task: self._scaled_factors(task, factors[task]) for task in self.aligned_tasks if task in factors}
        return super().rows(stopped, masks, row_task, by_task, positives)

    def _scale(self, task: str, dtype: Any) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(self.gradient_layers)[self.aligned_tasks.index(task)], dtype)

    def _scaled(self, task: str, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return a task's gradients at all shared tensors, each times its part of the task's scale."""
        assert self._build_arguments is not None
        entries = [shape[1:] if self.per == "row" else shape[-1:] for shape in self._build_arguments["shared_shapes"]]
        parts = [at_least_float32(part) for part in parts]
        pieces = tf.split(self._scale(task, parts[0].dtype), [math.prod(shape) for shape in entries])
        # A row that is left out may hold NaN, and gives the scale's gradient zero times that.
        return [
            tf.math.multiply_no_nan(part, tf.cast(tf.reshape(piece, shape), part.dtype))
            for part, piece, shape in zip(parts, pieces, entries, strict=True)
        ]

    def _scaled_factors(self, task: str, factors: Factors) -> Factors:
        """Return the same of a gradient that is a product: the scale goes to the kernel's rows."""
        stopped = Factors(*(tf.stop_gradient(getattr(factors, f.name)) for f in dataclasses.fields(Factors)))
        scale = self._scale(task, stopped.kernel.dtype)
        inner = tf.math.multiply_no_nan(stopped.inner, scale)
        return dataclasses.replace(stopped, kernel=stopped.kernel * scale[:, None], inner=inner)

    def align(self, rows: TaskRows, update_metrics: bool) -> tf.Tensor:
        """Return the discriminator's loss; the scales get the reversed gradient of it, and that of the anchor."""
        loss = super().align(rows, update_metrics)
        if self.anchor == 0.0:
            return loss
        # Of the scales alone, so every replica has the whole of it.
        distance = tf.reduce_mean(tf.square(tf.convert_to_tensor(self.gradient_layers) - 1.0)) / summed_replicas()
        return with_gradient_of(loss, distance, tf.constant(self.anchor, tf.float64))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = {**super().get_config(), "anchor": self.anchor}
        return {name: value for name, value in config.items() if name not in _FIXED}


_FIXED = ("reach", "every")
