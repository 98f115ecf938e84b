"""The steps of multi-task training: one forward pass, one merged backward pass, one update of model and discriminator.

`MultiTaskModel` adds what happens around the steps: construction, compile, fit and saving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.base import Alignment
from gradalign.alignment.rows import TaskRows
from gradalign.alignment.sampling import gather_rows
from gradalign.errors import UserError
from gradalign.gradients.recording import record_outputs
from gradalign.gradients.replacement import replace_task_gradients
from gradalign.gradients.replicas import replica_count, sum_on_first_replica
from gradalign.gradients.sparse import sum_repeated_rows
from gradalign.gradients.task_gradients import TaskGradients, TaskTape
from gradalign.gradients.updates import apply_if, needs_whole_gradients
from gradalign.tasks import Batch, Forward, TaskLogs, own_inputs, predictions_by_task, specs_of, weighted_mean

__all__ = ["MultiTaskSteps"]


class MultiTaskSteps(keras.Model):  # type: ignore[misc]  # Keras ships no types
    """Steps over a base model's tasks and an alignment; the base class of `MultiTaskModel`, which fills the attributes.

    Attributes:
        base: the user's model, `{task: prediction}`.
        alignment: an alignment or `None`.
        discriminator_optimizer: trains the alignment's own weights; `None` where it has none.
    """

    base: keras.Model
    alignment: Alignment | None
    discriminator_optimizer: Any
    _held: SimpleNamespace
    _logs: TaskLogs | None
    _evaluating: bool
    _is_ready: bool

    def make_ready(self, specs: Any) -> None:
        """Create all weights from the specs of a batch of `base`'s inputs; implemented by `MultiTaskModel`."""
        raise AssertionError("MultiTaskModel implements make_ready.")

    def make_ready_for(self, data: Any) -> None:
        """Create all weights from a batch `(x, y[, sample_weight])` of tensors or specs; once."""
        if self._is_ready:
            return
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        self.make_ready(specs_of(own_inputs(self.base, x, self._row_task, needed=False)[0]))

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Return the predictions of `base`; a `row_task` column in `x` is left out."""
        inputs, _ = own_inputs(self.base, x, self._row_task, needed=False)
        return self.base(inputs, training=training)

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles the training step or its dense part."""
        return bool(self.jit_compile or self._held.dense is not None)

    @property
    def _row_task(self) -> str | None:
        return None if self.alignment is None else self.alignment.row_task

    def forward(
        self, data: Any, *, training: bool, aligned: bool, shift: list[Any] | None = None, sampled: bool = False
    ) -> Forward:
        """Run `base` once on a batch `(x, y[, sample_weight])`.

        Args:
            data: the batch.
            training: the mode of the base's layers.
            aligned: record the path from the shared tensors, for `task_gradients_of`.
            shift: added to the shared tensors, for finite differences.
            sampled: take task gradients at the rows that the alignment draws.
        """
        batch = self._read(data, aligned=aligned)
        return self._forward(self.base, batch, training=training, aligned=aligned, shift=shift, sampled=sampled)

    def _read(self, data: Any, *, aligned: bool) -> Batch:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs, row_task = own_inputs(self.base, x, self._row_task, needed=aligned)
        self.make_ready(specs_of(inputs))
        return Batch(inputs, y, sample_weight, row_task if aligned else None)

    def _forward(
        self, base: Any, batch: Batch, *, training: bool, aligned: bool, shift: Any = None, sampled: bool = False
    ) -> Forward:
        """Do what `forward` does with a batch that was read; `base` maps its inputs to the base's outputs."""
        result = Forward()
        result.row_task = batch.row_task
        if not aligned:
            self._run(result, base, batch, training)
            return result
        assert self.alignment is not None
        # A check differentiates the gradients themselves, so it has to have them as they are.
        result.tape = TaskTape(limit_reach=self.alignment.reach == "shared", factored=sampled)
        shifts = iter(shift or [])

        def watch(shared: tf.Tensor) -> tf.Tensor:
            assert self.alignment is not None and result.tape is not None
            # Where gradients are replaced, those of all rows are wanted.
            if sampled and result.sampled is None and not self.alignment.transforms:
                result.sampled = result.tape.rows = self.alignment.sampled_rows(tf.shape(shared)[0])
            return result.tape.watch(shared + next(shifts) if shift else shared)

        with result.tape, record_outputs(self._held.layers, watch) as recorded:
            self._run(result, base, batch, training)
        result.shared = [tensor for of_layer in recorded.values() for tensor in of_layer]
        return result

    def _run(self, result: Forward, base: Any, batch: Batch, training: bool) -> None:
        predictions = predictions_by_task(self.base, base(batch.inputs, training=training))
        result.add_losses(self._held.losses, predictions, batch.y, batch.sample_weight, self.tasks)

    def task_gradients_of(self, forward: Forward) -> TaskGradients:
        """Return `{task: [gradient at each shared tensor]}` of a forward pass that was run with `aligned=True`."""
        assert forward.tape is not None and self.alignment is not None
        aligned = {task: forward.totals[task] for task in self.alignment.aligned_tasks}
        return forward.tape.gradients(aligned, forward.shared, one_is_enough=True)

    def positives_of(self, forward: Forward) -> dict[str, tf.Tensor] | None:
        """Return `{task: booleans (B,), whether the label is above one half}` where the alignment asks for them.

        Tasks with several outputs are left out: their labels are not of two kinds.
        """
        if self.alignment is None or not self.alignment.needs_positives:
            return None
        ones = {t: p.shape.rank == 1 or p.shape[1:].num_elements() == 1 for t, p in forward.predictions.items()}
        return {t: tf.reshape(forward.rows[t].y_true, [-1]) > 0.5 for t in self.alignment.aligned_tasks if ones[t]}

    def train_step(self, data: Any) -> dict[str, Any]:
        """Run one step: one forward pass, one merged backward pass, one update of model and discriminator."""
        variables, own = self.trainable_variables, self._alignment_variables
        due = False if self.alignment is None else self.alignment.is_due
        if due is True or due is False:
            gradients = self._gradients(data, variables + own, aligned=due)
        else:
            gradients = self._gradients_where_due(data, variables + own, due)
        if self.alignment is not None:
            self._update_alignment(gradients[len(variables) :], own, gradients[: len(variables)], due)
        if variables:
            self.optimizer.apply_gradients(list(zip(gradients[: len(variables)], variables, strict=True)))
        return self.get_metrics_result()

    @property
    def _has_discriminator(self) -> bool:
        return self.alignment is not None and self.alignment.has_weights

    @property
    def _alignment_variables(self) -> list[Any]:
        return [] if self.alignment is None else list(self.alignment.trainable_variables)

    def _gradients(self, data: Any, variables: list[Any], *, aligned: bool) -> list[Any]:
        """Return the gradients of one batch, on the loss scale, and add it to the logs."""
        batch = self._read(data, aligned=aligned)
        if self._held.dense is None:
            gradients = self._gradients_through(self.base, batch, variables, aligned=aligned)
        else:
            gradients = self._held.dense.gradients(self._gradients_through, batch, variables, aligned=aligned)
        optimizers = [self.optimizer, *([self.discriminator_optimizer] if self._has_discriminator else [])]
        gradients = sum_on_first_replica(gradients, dense=any(map(needs_whole_gradients, optimizers)))
        if self.alignment is not None:
            # Equal to PyTorch with every optimizer. Without an alignment the numbers stay those of stock Keras.
            gradients = [sum_repeated_rows(g) for g in gradients]
        return gradients

    def _gradients_through(
        self, base: Any, batch: Batch, variables: list[Any], *, aligned: bool, tensors: Sequence[tf.Tensor] = ()
    ) -> list[Any]:
        """Return the gradients of `variables`, then of `tensors` that `base` takes, and add the batch to the logs."""
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            forward = self._forward(base, batch, training=True, aligned=aligned, sampled=True)
            assert self._logs is not None
            total = self._total_loss(forward)
            if aligned:
                assert self.alignment is not None
                of_tasks: Any = self.task_gradients_of(forward)
                if self.alignment.transforms:
                    total += tf.cast(self._replaced(forward, of_tasks), total.dtype)
                    forward.sampled = self.alignment.sampled_rows(tf.shape(forward.shared[0])[0])
                    of_tasks = of_tasks if forward.sampled is None else gather_rows(of_tasks, forward.sampled)
                given = of_tasks, forward.masks, forward.row_task
                drawn = {"rows": forward.sampled, "positives": self.positives_of(forward)}
                with tape.stop_recording():
                    self._update_ahead(lambda alignment: alignment.checked_rows(*given, **drawn))
                alignment_loss = self.alignment(*given, update_metrics=True, **drawn)
                del of_tasks, given
                total += tf.cast(alignment_loss, total.dtype)
            scaled = self.optimizer.scale_loss(total)
        gradients: list[Any] = tape.gradient(scaled, [*variables, *tensors])
        del tape
        forward.tape = None
        self._log_losses(forward, total)
        if aligned:
            self._logs.alignment_loss.update_state(*_as_mean(alignment_loss, forward))
        self._logs.metrics.update_state(forward.rows, forward.predictions)
        return gradients

    def _replaced(self, forward: Forward, of_tasks: TaskGradients) -> tf.Tensor:
        """Return 0, whose gradient puts what the alignment makes of the tasks' gradients in place of these."""
        assert self.alignment is not None and self._logs is not None
        weights = {task: tf.constant(c, forward.weights[task].dtype) for task, c in self._logs.loss_weights.items()}
        factors = {task: weighted_mean(weights[task], forward.weights[task]) for task in of_tasks}
        return replace_task_gradients(forward.shared, of_tasks, self.alignment.transform(of_tasks), factors)

    def _gradients_where_due(self, data: Any, variables: list[Any], due: tf.Tensor) -> list[Any]:
        """Return the gradients of an aligned step where `due` holds, else those of a plain one."""
        if replica_count() > 1:
            raise UserError(
                "An alignment on every so-manieth step (every= above 1) works on one device: replicas sum their losses "
                "in each step, which they cannot do in a branch; use fraction= instead."
            )
        if tf.executing_eagerly():
            return self._gradients(data, variables, aligned=bool(due))
        self.make_ready_for(data)  # Variables cannot be made in a branch.
        missing: list[bool] = []

        def aligned() -> list[Any]:
            found = self._gradients(data, variables, aligned=True)
            missing.extend(g is None for g in found)
            return [g for g in found if g is not None]

        def plain() -> list[Any]:
            found = self._gradients(data, variables, aligned=False)
            return [
                tf.zeros(variable.shape, variable.dtype) if g is None else g
                for g, variable, none in zip(found, variables, missing, strict=True)
                if not none
            ]

        given = iter(tf.cond(due, aligned, plain))
        return [None if none else next(given) for none in missing]

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate one batch; the alignment takes no part."""
        forward = self.forward(data, training=False, aligned=False)
        assert self._logs is not None
        self._log_losses(forward, self._total_loss(forward))
        self._logs.metrics.update_state(forward.rows, forward.predictions)
        return self.get_metrics_result()

    def weighted_losses(self, forward: Forward) -> tf.Tensor:
        """Return this replica's part of `sum_t c_t L_t`, a scalar."""
        assert self._logs is not None
        weights = self._logs.loss_weights
        # Each loss computes in a float type of its own, such as float64 for one of many tasks.
        widest = keras.backend.result_type(*(loss.dtype.name for loss in forward.losses.values()))
        losses = {task: tf.cast(loss, widest) for task, loss in forward.losses.items()}
        return tf.convert_to_tensor(
            sum(loss if weights[task] == 1.0 else weights[task] * loss for task, loss in losses.items())
        )

    def _total_loss(self, forward: Forward) -> tf.Tensor:
        total = self.weighted_losses(forward)
        for loss in self._regularization():
            total += tf.cast(loss, total.dtype) / replica_count()
        return total

    def _regularization(self) -> list[tf.Tensor]:
        return [*self.base.losses, *([] if self.alignment is None else self.alignment.losses)]

    def _log_losses(self, forward: Forward, total: tf.Tensor) -> None:
        assert self._logs is not None
        rows = forward.batch_rows
        self._logs.loss.update_state(*_as_mean(total, forward))
        for task, of_task in forward.rows.items():
            self._logs.task_losses[task].update_state(forward.totals[task], tf.reduce_sum(of_task.weight))
        regularization = tf.add_n(
            [tf.cast(loss, rows.dtype) for loss in self._regularization()] or [tf.zeros((), rows.dtype)]
        )
        self._logs.regularization.update_state(regularization * rows, rows)

    def _update_alignment(self, gradients: list[Any], variables: list[Any], others: list[Any], due: Any) -> None:
        """Apply the discriminator's gradients, freed of the loss scale, and count the step.

        Args:
            gradients: of the alignment's own weights.
            variables: these weights.
            others: gradients of the base, from the same backward pass.
            due: whether the alignment took part in this step.
        """
        assert self.alignment is not None
        scale = self.optimizer.scale_loss(1.0)
        if tf.is_tensor(scale) or scale != 1.0:
            gradients = [None if g is None else g / tf.cast(scale, g.dtype) for g in gradients]
        if variables:
            self._apply_to_alignment(gradients, variables, others, due)
        self.alignment.advance()

    def _apply_to_alignment(self, gradients: list[Any], variables: list[Any], others: list[Any], due: Any) -> None:
        optimizer = self.discriminator_optimizer
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            dense = [tf.convert_to_tensor(g) for g in [*gradients, *others] if g is not None]
            # The main optimizer leaves out a step whose gradients overflow; so does the discriminator's.
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in dense])
            apply_if(finite if due is True else tf.logical_and(finite, due), optimizer, gradients, variables)
        elif due is not True:
            apply_if(due, optimizer, gradients, variables)
        else:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def _update_ahead(self, rows_of: Callable[[Alignment], TaskRows]) -> None:
        """Let the alignment's own weights descend their loss as often as it asks, on gradients that do not move.

        Args:
            rows_of: returns the alignment's rows; called only where there is an update.
        """
        assert self.alignment is not None
        if self.alignment.updates_ahead == 0:
            return
        rows, variables = rows_of(self.alignment), self._alignment_variables
        for _ in range(self.alignment.updates_ahead):
            with tf.GradientTape() as tape:
                loss = self.alignment.own_loss(rows)
            found = [(g, v) for g, v in zip(tape.gradient(loss, variables), variables, strict=True) if g is not None]
            gradients, moved = [g for g, _ in found], [v for _, v in found]
            whole = needs_whole_gradients(self.discriminator_optimizer) or needs_whole_gradients(self.optimizer)
            self._apply_to_alignment(sum_on_first_replica(gradients, dense=whole), moved, [], True)

    # --- logs ---------------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> list[Any]:
        """The metrics of the running loop: training shows the alignment's, evaluation does not."""
        if self._logs is None:
            return []
        training = not self._evaluating
        own = self.alignment.metrics if self.alignment is not None and training else []
        return [*self._logs.all(training=training, aligned=self.alignment is not None), *own]

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the logs of the running loop, as means since the epoch began."""
        if self._logs is None:
            return {}
        return self._logs.read(super().get_metrics_result(), training=not self._evaluating)


def _as_mean(part: tf.Tensor, forward: Forward) -> tuple[tf.Tensor, tf.Tensor]:
    """Return total and weight of a batch's mean over rows, from this replica's part of that mean.

    Parts add up to the mean, however many rows each replica has: the weights add up to the batch's rows, and the
    totals to the mean times these.
    """
    return part * tf.cast(forward.global_rows, part.dtype), forward.batch_rows
