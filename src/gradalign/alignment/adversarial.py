"""Adversarial alignment: a discriminator names the task of a gradient, and the reversal makes the model hide it.

Maninis, Radosavovic, Kokkinos, "Attentive Single-Tasking of Multiple Tasks", CVPR 2019, section 4; Sinha et al.,
"Gradient Adversarial Training of Neural Networks", 2018. In the notation of docs/design.md, section 1:

    A = mean over tasks t of  mean over rows i of t of  CE(D(R_a(N(g_ti))), t),     a = weight × schedule(progress)

Deviations from ASTMT's official code: rows weigh the same whatever the batch size (gradients of the sum, no epsilon),
every task weighs the same whatever its number of labels, the weight sits in the reversal so that the discriminator
descends its own loss at full strength, and the schedule moves every step instead of every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.base import Alignment
from gradalign.alignment.discriminators import in_full_precision, mlp_discriminator
from gradalign.alignment.rows import TaskRows
from gradalign.errors import UserError
from gradalign.gradients.factors import Factors
from gradalign.gradients.normalization import at_least_float32
from gradalign.gradients.replicas import sum_over_replicas
from gradalign.gradients.reversal import reverse_gradient

__all__ = ["AdversarialAlignment", "BalancedAccuracy"]


@keras.saving.register_keras_serializable(package="gradalign")
class AdversarialAlignment(Alignment):
    """Make the tasks' gradients at the shared tensor indistinguishable to a discriminator.

    `alignment(grads, masks=None) -> scalar`, to be added to the task losses. Minimising that one sum trains both sides:
    the discriminator descends its own loss at full strength, and what lies below the reversal ascends it at
    `weight × schedule`.

    Args:
        weight: largest strength of the reversal, 0 or more; 0 trains the discriminator only.
        discriminator: Keras model or layer, (rows, D) to (rows, T) logits in task order; default
            `mlp_discriminator`. With `per="position"` it sees (T·B, positions..., C) and may be convolutional.
        normalize: `"batch"`, `"l2"` or `"none"`, see `gradalign.gradients.normalize`.
        schedule: `"ganin"`, `"linear"`, a number, or a function of progress (a float64 scalar from 0 to 1).
        total_steps: optimizer steps over which progress goes from 0 to 1; default what `fit` runs.
        tasks: names of the tasks to align; default all.
        row_task: name of the input that says which task a row belongs to (boolean: True is the first of two; integer:
            position in the model's outputs; string: task name). Each row then gives its own task's gradient only.
        reach: `"all"`, the second-order gradient goes wherever autograd takes it; `"shared"`, only into what produces
            the shared tensor.
        per: `"row"` or `"position"`, see `gradalign.gradients.normalize`.
        fraction: share of each batch's rows that the alignment sees, drawn anew for each step; above 0, up to 1. Its
            loss is a mean over rows, so the expected gradient stays, but for `"batch"`'s root mean square.
        every: the alignment takes part in every so-manieth step, with that many times the strength, so the expected
            gradient of the model stays. The discriminator then learns that many times less often. In an epoch without
            such a step, alignment loss and accuracy read 0.

    Raises:
        UserError: for a wrong argument, and when called, for gradients that do not fit it.

    Example:
        >>> alignment = AdversarialAlignment(0.1, schedule=1.0)
        >>> table = tf.Variable([[0.5, -1.0], [2.0, 1.0]])
        >>> with tf.GradientTape() as tape:
        ...     shared = tf.gather(table, [0, 1])
        ...     gradients = {"click": 2.0 * shared, "buy": 3.0 * shared ** 2}
        ...     loss = alignment(gradients, masks={"buy": [True, False]})
        >>> loss.shape, tape.gradient(loss, alignment.discriminator.trainable_variables)[0].shape
        (TensorShape([]), TensorShape([2, 64]))
    """

    def __init__(
        self,
        weight: float = 0.1,
        *,
        discriminator: Any = None,
        normalize: str = "batch",
        schedule: Any = "ganin",
        total_steps: int | None = None,
        tasks: list[str] | None = None,
        row_task: str | None = None,
        reach: str = "all",
        per: str = "row",
        fraction: float = 1.0,
        every: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            weight,
            normalize=normalize,
            schedule=schedule,
            total_steps=total_steps,
            tasks=tasks,
            row_task=row_task,
            reach=reach,
            per=per,
            fraction=fraction,
            every=every,
            **kwargs,
        )
        if discriminator is not None and not isinstance(discriminator, keras.layers.Layer):
            raise UserError(
                f"The discriminator is a Keras model or layer that returns logits; received {discriminator!r}."
            )
        self.given_discriminator = discriminator is not None
        self.discriminator: Any = discriminator
        self.accuracy: BalancedAccuracy | None = None

    def build_aligner(self, width: int, dtype: str) -> None:
        """Make the discriminator, or check that the given one returns a logit for each task."""
        tasks = len(self.aligned_tasks)
        if self.discriminator is None:
            self.discriminator = mlp_discriminator(width, tasks, dtype=dtype)
        else:
            in_full_precision(self.discriminator)
            # Built up front: a discriminator first met inside a training step would be saved without its weights.
            row = (*self._positions(), width)
            symbol = keras.KerasTensor((None, *row), dtype=self.discriminator.compute_dtype)
            shape = tuple(self.discriminator(symbol).shape)
            if shape != (None, *row[:-1], tasks):
                raise UserError(
                    f"The discriminator returns shape {shape} for gradients {(None, *row)}; it has to return logits "
                    f"{(None, *row[:-1], tasks)}, one for each of {', '.join(self.aligned_tasks)}."
                )
        self.accuracy = BalancedAccuracy(tasks, name="discriminator_accuracy")

    def _positions(self) -> list[int | None]:
        """The axes between batch and channels that the discriminator sees; none with `per="row"`."""
        assert self._build_arguments is not None
        return list(self._build_arguments["shared_shapes"][0][1:-1]) if self.per == "position" else []

    def align(self, rows: TaskRows, update_metrics: bool) -> tf.Tensor:
        """Return the mean over tasks of the discriminator's mean cross-entropy over the task's rows."""
        tasks = len(self.aligned_tasks)
        # (T, B, ...) to (T·B, ...): the discriminator meets all tasks in one batch.
        logits = self._logits_of_gradients(rows.gradients) if rows.factors is None else self._logits_of_factors(rows)
        if logits.shape[-1] != tasks:
            raise UserError(
                f"The discriminator returns {logits.shape[-1]} logits; it has to return one for each of {tasks} tasks."
            )
        logits = tf.reshape(logits, tf.concat([tf.shape(rows.kept), [tasks]], axis=0))
        own = tf.reshape(tf.eye(tasks, dtype=logits.dtype), [tasks, *[1] * (rows.kept.shape.rank - 1), tasks])
        cross_entropy = -tf.reduce_sum(tf.nn.log_softmax(logits) * own, axis=-1)
        behind_tasks = list(range(1, rows.kept.shape.rank))
        kept = tf.cast(rows.kept, cross_entropy.dtype)
        counts = sum_over_replicas(tf.reduce_sum(kept, axis=behind_tasks))
        # `kept` zeroes rows that are left out; a where, not a product, so that nothing they hold can matter.
        sums = tf.reduce_sum(tf.where(rows.kept, cross_entropy, tf.zeros_like(cross_entropy)), axis=behind_tasks)
        present = tf.cast(counts > 0, cross_entropy.dtype)
        loss = tf.reduce_sum(sums / tf.maximum(counts, 1.0)) / tf.maximum(tf.reduce_sum(present), 1.0)
        if update_metrics:
            assert self.accuracy is not None
            right = tf.equal(
                tf.argmax(logits, axis=-1),
                tf.reshape(tf.range(tasks, dtype=tf.int64), [tasks, *[1] * (rows.kept.shape.rank - 1)]),
            )
            self.accuracy.update_state(right, rows.kept)
        return loss

    def _logits_of_gradients(self, gradients: tf.Tensor) -> tf.Tensor:
        together = tf.reshape(gradients, tf.concat([[-1], tf.shape(gradients)[2:]], axis=0))
        together.set_shape([None, *gradients.shape[2:]])
        return self._logits(reverse_gradient(together, self.strength))

    def takes_factors(self, factors: Mapping[str, Factors]) -> bool:
        """Whether the default discriminator's first layer is less work on the factors than on the gradients."""
        return (
            not self.given_discriminator
            and self.per == "row"
            and all(f.left.shape[-1] < f.kernel.shape[0] and f.left.dtype == f.kernel.dtype for f in factors.values())
            and {f.left.dtype.name for f in factors.values()} == {self.discriminator.compute_dtype}
        )

    def _logits_of_factors(self, rows: TaskRows) -> tf.Tensor:
        assert rows.factors is not None
        first, *others = self.discriminator.layers
        sums = [factors.reversed(self.strength).times(first.kernel) for factors in rows.factors]
        x = first.activation(tf.concat(sums, axis=0) + first.bias)
        for layer in others:
            x = layer(x, training=True)
        return x

    def _logits(self, rows: tf.Tensor) -> tf.Tensor:
        discriminator = self.discriminator
        if not self.given_discriminator and rows.shape.rank > 2:
            # The default discriminator judges each position by itself.
            logits = self._logits(tf.reshape(rows, [-1, rows.shape[-1]]))
            return tf.reshape(logits, tf.concat([tf.shape(rows)[:-1], [logits.shape[-1]]], axis=0))
        logits = discriminator(tf.cast(rows, discriminator.compute_dtype), training=True)
        return tf.cast(logits, rows.dtype) if rows.dtype == tf.float64 else at_least_float32(logits)

    @property
    def chance_accuracy(self) -> float:
        """The discriminator's accuracy when it guesses, 1 / number of tasks; the accuracy is balanced over tasks."""
        return 1.0 / len(self.aligned_tasks)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; a discriminator that was given goes in whole."""
        discriminator = keras.saving.serialize_keras_object(self.discriminator) if self.given_discriminator else None
        return {**super().get_config(), "discriminator": discriminator}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make an alignment of what `get_config` returned."""
        given = config.get("discriminator")
        if given is not None:
            config = {**config, "discriminator": keras.saving.deserialize_keras_object(given)}
        return super().from_config(config)


class BalancedAccuracy(keras.metrics.Metric):
    """Mean over tasks of the share of rows that the discriminator names right; tasks without rows do not count.

    Example:
        >>> metric = BalancedAccuracy(2)
        >>> metric.update_state(tf.constant([[True, True, True], [False, True, True]]),
        ...                     tf.constant([[True, True, True], [True, True, False]]))
        >>> float(metric.result())
        0.75
    """

    def __init__(self, tasks: int, name: str = "discriminator_accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.right = self.add_variable((tasks,), initializer="zeros", name="right", aggregation="sum")
        self.rows = self.add_variable((tasks,), initializer="zeros", name="rows", aggregation="sum")

    def update_state(self, right: tf.Tensor, kept: tf.Tensor) -> None:
        """Add a batch: `right` and `kept` are booleans (T, B, ...)."""
        axes = list(range(1, kept.shape.rank))
        dtype = self.rows.dtype
        self.right.assign_add(tf.reduce_sum(tf.cast(tf.logical_and(right, kept), dtype), axis=axes))
        self.rows.assign_add(tf.reduce_sum(tf.cast(kept, dtype), axis=axes))

    def result(self) -> tf.Tensor:
        """Return the balanced accuracy since the last reset, a scalar; 0 where no task had rows."""
        rows = tf.convert_to_tensor(self.rows)
        present = tf.cast(rows > 0, rows.dtype)
        shares = tf.convert_to_tensor(self.right) / tf.maximum(rows, 1.0)
        return tf.reduce_sum(shares) / tf.maximum(tf.reduce_sum(present), 1.0)
