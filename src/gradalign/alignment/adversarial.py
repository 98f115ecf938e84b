"""Adversarial alignment: a discriminator names the task of a gradient, and the reversal makes the model hide it.

Maninis, Radosavovic, Kokkinos, "Attentive Single-Tasking of Multiple Tasks", CVPR 2019, section 4; Sinha et al.,
"Gradient Adversarial Training of Neural Networks", 2018. In the notation of docs/design.md, section 1:

    A = mean over tasks t of  mean over rows i of t of  CE(D(R_a(N(g_ti))), t),     a = weight × schedule(progress)

That is `objective="reversal"`; `gradalign.alignment.objectives` has others, in which the model minimises a loss of its
own: the value stays the discriminator's loss, and the model gets `a` times the gradient of its own one.

Deviations from ASTMT's official code: rows weigh the same whatever the batch size (gradients of the sum, no epsilon),
every task weighs the same whatever its number of labels, the weight sits in the reversal so that the discriminator
descends its own loss at full strength, and the schedule moves every step instead of every epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.accuracy import BalancedAccuracy
from gradalign.alignment.arguments import is_count, share_below_one, true_or_false
from gradalign.alignment.base import Alignment
from gradalign.alignment.discriminators import in_full_precision, mlp_discriminator
from gradalign.alignment.objectives import objective_named
from gradalign.alignment.rows import TaskRows
from gradalign.alignment.spectral import SpectralDense
from gradalign.errors import UserError
from gradalign.gradients.factors import Factors
from gradalign.gradients.normalization import at_least_float32
from gradalign.gradients.reversal import reverse_gradient, with_gradient_of

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
            loss is a mean over rows, so the expected gradient stays, but for `"batch"`'s root mean square, and where a
            task has so few labels in a batch that draws miss them all: such a draw adds nothing for it.
        every: the alignment takes part in every so-manieth step, with that many times the strength, so the expected
            gradient of the model stays. The discriminator then learns that many times less often. In an epoch without
            such a step, alignment loss and accuracy read 0.
        objective: `"reversal"`, `"non_saturating"`, `"confusion"`, `"least_squares"`, `"wasserstein"`, or an
            `Objective`. All but `"reversal"` run the discriminator twice.
        sign_free: turn each row so that it points the way of `dz/ds` of a task with one logit z, whatever its label:
            `q sign(dl/dz)`. Else its sign is the label's, which names the task where base rates differ. Its length
            still tells how much the label surprised, but for `normalize="l2"`. Rows of a task with several logits stay
            as they are: their labels lie in a direction that no sign undoes.
        balance_labels: positive and negative rows of a task weigh the same in loss and accuracy, so that base rates
            give nothing away. Both need `positives` when called; `MultiTaskModel` passes them.
        label_smoothing: share of each target that is spread evenly over all tasks, 0 up to, but without, 1 (Szegedy et
            al., "Rethinking the Inception Architecture", CVPR 2016, section 7); in the discriminator's loss.
        spectral_norm: divide each kernel of the default discriminator by its largest singular value, see
            `gradalign.alignment.spectral`.
        discriminator_steps: updates of the discriminator for each of the model's, on the same gradients, stopped.
            `MultiTaskModel` runs them; in a loop of your own you do, on `discriminator_loss`.

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
            normalize=normalize,
            schedule=schedule,
            total_steps=total_steps,
            tasks=tasks,
            row_task=row_task,
            reach=reach,
            per=per,
            fraction=fraction,
            every=every,
            sign_free=sign_free,
            balance_labels=balance_labels,
            **kwargs,
        )
        if discriminator is not None and not isinstance(discriminator, keras.layers.Layer):
            raise UserError(
                f"The discriminator is a Keras model or layer that returns logits; received {discriminator!r}."
            )
        self.objective = objective
        self._objective = objective_named(objective)
        self.label_smoothing = share_below_one("label_smoothing", label_smoothing)
        if self.label_smoothing and not self._objective.takes_targets:
            raise UserError(
                f"label_smoothing is of the targets of the discriminator's loss, and objective={objective!r} has none; "
                f"leave it at 0. Received {label_smoothing!r}."
            )
        self.spectral_norm = true_or_false("spectral_norm", spectral_norm)
        if spectral_norm and discriminator is not None:
            raise UserError(
                "spectral_norm=True is of the default discriminator; build yours of "
                "gradalign.alignment.spectral.SpectralDense layers instead."
            )
        if not is_count(discriminator_steps):
            raise UserError(f"discriminator_steps is a whole number, 1 or more; received {discriminator_steps!r}.")
        self.discriminator_steps = int(discriminator_steps)
        self.given_discriminator = discriminator is not None
        self.discriminator: Any = discriminator
        self.accuracy: BalancedAccuracy | None = None

    def build_aligner(self, width: int, dtype: str) -> None:
        """Make the discriminator, or check that the given one returns a logit for each task."""
        tasks = len(self.aligned_tasks)
        if self.discriminator is None:
            self.discriminator = mlp_discriminator(width, tasks, dtype=dtype, spectral_norm=self.spectral_norm)
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
        self.accuracy = BalancedAccuracy(tasks, by_label=self.balance_labels)

    def _positions(self) -> list[int | None]:
        """The axes between batch and channels that the discriminator sees; none with `per="row"`."""
        assert self._build_arguments is not None
        return list(self._build_arguments["shared_shapes"][0][1:-1]) if self.per == "position" else []

    @property
    def updates_ahead(self) -> int:
        """Updates of the discriminator before the step that updates both sides."""
        return self.discriminator_steps - 1

    def align(self, rows: TaskRows, update_metrics: bool) -> tf.Tensor:
        """Return the discriminator's loss; the model gets its own side's gradient, times the strength."""
        if self._objective.reverses:
            scores = self.scores(rows.mapped(lambda x: reverse_gradient(x, self.strength)))
            loss = self._objective.discriminator_loss(scores, self._targets(scores), rows)
        else:
            scores, own = self._scores_and_loss(rows.mapped(tf.stop_gradient))
            loss = with_gradient_of(own, self.model_loss(rows), self.strength)
        if update_metrics:
            assert self.accuracy is not None
            tasks = len(self.aligned_tasks)
            right = tf.equal(
                tf.argmax(scores, axis=-1),
                tf.reshape(tf.range(tasks, dtype=tf.int64), [tasks, *[1] * (rows.kept.shape.rank - 1)]),
            )
            self.accuracy.update_state(right, rows.kept, rows.positives)
        return loss

    def own_loss(self, rows: TaskRows) -> tf.Tensor:
        """Return the discriminator's loss alone: no gradient reaches the rows."""
        return self._scores_and_loss(rows.mapped(tf.stop_gradient))[1]

    def model_loss(self, rows: TaskRows) -> tf.Tensor:
        """Return what the model minimises, a function of the rows alone: no gradient reaches the discriminator."""
        with self._stopped_weights():
            scores = self.scores(rows)
            if self._objective.reverses:
                return -self._objective.discriminator_loss(scores, self._targets(scores), rows)
            return self._objective.model_loss(scores, rows)

    def discriminator_loss(
        self, grads: Any, masks: Any = None, row_task: Any = None, positives: Any = None
    ) -> tf.Tensor:
        """Return the discriminator's loss on stopped gradients, for further updates of it in a loop of your own.

        Arguments are those of a call of the alignment.

        Example:
            >>> alignment = AdversarialAlignment(schedule=1.0)
            >>> gradients = {"click": tf.ones([4, 2]), "buy": -tf.ones([4, 2])}
            >>> bool(alignment.discriminator_loss(gradients) == alignment(gradients))
            True
        """
        return self.own_loss(self.checked_rows(grads, masks, row_task, positives=positives))

    @contextmanager
    def _stopped_weights(self) -> Iterator[None]:
        """Within the context the discriminator's weights take no gradient, and its state does not move."""
        stopped = [(v, tf.stop_gradient(v.value)) for v in self.discriminator.trainable_variables]
        with keras.StatelessScope(state_mapping=stopped):
            yield

    def _scores_and_loss(self, rows: TaskRows) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the discriminator's scores and its loss, for rows whose gradients are stopped."""
        scores = self.scores(rows)
        loss = self._objective.discriminator_loss(scores, self._targets(scores), rows)
        penalty = self._objective.penalty(
            lambda x: self._as_scores(self._logits_of_gradients(x), rows), rows, self.step
        )
        return scores, loss if penalty is None else loss + penalty

    def _targets(self, scores: tf.Tensor) -> tf.Tensor:
        tasks = len(self.aligned_tasks)
        own = tf.reshape(tf.eye(tasks, dtype=scores.dtype), [tasks, *[1] * (scores.shape.rank - 2), tasks])
        return (1.0 - self.label_smoothing) * own + self.label_smoothing / tasks if self.label_smoothing else own

    def scores(self, rows: TaskRows) -> tf.Tensor:
        """Return the discriminator's logits of all rows, (T, B, ..., T): its own task first, those named last."""
        # (T, B, ...) to (T·B, ...): the discriminator meets all tasks in one batch.
        logits = self._logits_of_gradients(rows.gradients) if rows.factors is None else self._logits_of_factors(rows)
        return self._as_scores(logits, rows)

    def _as_scores(self, logits: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        tasks = len(self.aligned_tasks)
        if logits.shape[-1] != tasks:
            raise UserError(
                f"The discriminator returns {logits.shape[-1]} logits; it has to return one for each of {tasks} tasks."
            )
        scores = tf.reshape(logits, tf.concat([tf.shape(rows.kept), [tasks]], axis=0))
        scores.set_shape([*rows.kept.shape, tasks])
        return scores

    def _logits_of_gradients(self, gradients: tf.Tensor) -> tf.Tensor:
        together = tf.reshape(gradients, tf.concat([[-1], tf.shape(gradients)[2:]], axis=0))
        together.set_shape([None, *gradients.shape[2:]])
        return self._logits(together)

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
        kernel = first.divided_kernel(training=True) if isinstance(first, SpectralDense) else first.kernel
        sums = [factors.times(kernel) for factors in rows.factors]
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
        objective = self.objective
        return {
            **super().get_config(),
            "discriminator": discriminator,
            "objective": objective if isinstance(objective, str) else keras.saving.serialize_keras_object(objective),
            "label_smoothing": self.label_smoothing,
            "spectral_norm": self.spectral_norm,
            "discriminator_steps": self.discriminator_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make an alignment of what `get_config` returned."""
        given = config.get("discriminator")
        if given is not None:
            config = {**config, "discriminator": keras.saving.deserialize_keras_object(given)}
        objective = config.get("objective")
        if isinstance(objective, Mapping):
            config = {**config, "objective": keras.saving.deserialize_keras_object(objective)}
        return super().from_config(config)
