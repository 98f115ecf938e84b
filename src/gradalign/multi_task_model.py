"""`MultiTaskModel`: an existing Keras model under `compile` and `fit`, with task gradients aligned.

The one room that knows alignments, tasks and Keras' training loop; no method's name appears here. In the notation of
docs/design.md, section 1, it minimises `J = sum_t c_t L_t + A` (plus the base's own regularisation losses).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.base import Alignment
from gradalign.alignment.optimizer import discriminator_optimizer_like
from gradalign.dense_cut import dense_obstacle, loops_over_steps
from gradalign.dense_part import DensePart, chosen_mode
from gradalign.diagnostics.first_batch import checked_on_first_batch
from gradalign.errors import GradAlignWarning, UserError
from gradalign.gradients._keras_compat import functional_inputs, functional_outputs, seed_states
from gradalign.gradients.recording import find_layers, record_outputs
from gradalign.multi_task_steps import MultiTaskSteps
from gradalign.tasks import (
    TaskLogs,
    TaskMetrics,
    check_base,
    check_compiled,
    check_optimizers,
    loss_weights_by_task,
    losses_by_task,
    metrics_by_task,
    predictions_by_task,
    read_data_arguments,
    read_fit_arguments,
    refuse_class_weight,
    specs_from_config,
    specs_of_symbols,
    specs_to_config,
)

__all__ = ["MultiTaskModel"]


@keras.saving.register_keras_serializable(package="gradalign")
class MultiTaskModel(MultiTaskSteps):
    """Train `base` on several tasks with missing labels and, with an alignment, with aligned task gradients.

    Args:
        base: any Keras model (functional, sequential with heads, subclassed) that returns `{task: prediction}`. It
            stays the user's model, as `model.base`, and is called once a step.
        shared: where the shared tensor is: a layer's name, an `"outer/inner"` path, a layer, or a list of these.
        alignment: an alignment such as `AdversarialAlignment`; `None` trains without one.

    Raises:
        UserError: for a base that does not return a dict, one with a `train_step` of its own, or an unknown layer.

    A label of NaN, or a sample weight of 0, means that a row has no label for that task. Task losses are weighted means
    over labelled rows; metrics see labelled rows only.

    Example:
        >>> x = keras.Input((4,), name="x")
        >>> s = keras.layers.Dense(8, activation="gelu", name="encoder")(x)
        >>> head = lambda task: keras.layers.Dense(1, activation="sigmoid", name=task)(keras.layers.Dense(8, "gelu")(s))
        >>> base = keras.Model(x, {"click": head("click"), "buy": head("buy")})
        >>> from gradalign.alignment import AdversarialAlignment
        >>> model = MultiTaskModel(base, "encoder", AdversarialAlignment(0.1))
        >>> model.compile("adam", loss={"click": "binary_crossentropy", "buy": "binary_crossentropy"})
        >>> import numpy as np
        >>> labels = {"click": np.array([1.0, 0.0] * 4), "buy": np.array([1.0, np.nan] * 4)}
        >>> history = model.fit(np.ones((8, 4), "float32"), labels, epochs=2, verbose=0)
        >>> sorted(history.history)
        ['alignment_loss', 'buy_loss', 'click_loss', 'discriminator_accuracy', 'loss']
    """

    def __init__(
        self, base: keras.Model, shared: Any = None, alignment: Alignment | None = None, **kwargs: Any
    ) -> None:
        if isinstance(base, MultiTaskModel):
            base = base.base
        check_base(base)
        # The base casts its inputs itself, if it does: ids given as floats would not survive float16.
        super().__init__(**{"dtype": base.dtype_policy, "autocast": False, **kwargs})
        if alignment is not None and not isinstance(alignment, Alignment):
            raise UserError(f"alignment is an alignment such as AdversarialAlignment(); received {alignment!r}.")
        if shared is None and alignment is not None:
            raise UserError(
                'An alignment needs to know where the shared tensor is: name its layer, as in shared="encoder".'
            )
        self.base = base
        self.alignment = alignment
        self.discriminator_optimizer: Any = None
        # Held apart from Keras' search for layers and metrics: what is in here belongs to the base or is not saved.
        self._held = SimpleNamespace(tasks=[], layers={}, losses={}, compile={}, inputs=None, predictions={})
        self._held.dense = None
        self._held.layers = {} if shared is None else self._shared_layers(base, shared)
        self._is_ready = False
        self._evaluating = False
        self._first_batch_is_checked = False
        self._logs: TaskLogs | None = None
        if functional_inputs(base) is not None:
            self.make_ready(specs_of_symbols(functional_inputs(base)))

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order of the base's outputs; empty until the base's weights exist."""
        return list(self._held.tasks)

    @property
    def shared(self) -> list[str]:
        """Paths of the layers that the shared tensor is taken from."""
        return list(self._held.layers)

    @staticmethod
    def _shared_layers(base: keras.Model, shared: Any) -> dict[str, Any]:
        try:
            return find_layers(base, shared)
        except UserError as error:
            if base.built:
                raise
            raise UserError(
                f"{error} The model is not built yet: if it makes that layer in build(), "
                "call it on a batch before you wrap it."
            ) from None

    # --- state up front -----------------------------------------------------------------------------------------

    @tf.autograph.experimental.do_not_convert
    def make_ready(self, specs: Any) -> None:
        """Create all weights of base and alignment, from the specs of a batch of `base`'s inputs; once."""
        if self._is_ready or specs is None:
            return
        shapes: list[list[int | None]] = []
        dtypes: list[str] = []
        predictions: dict[str, Any] = {}

        @tf.autograph.experimental.do_not_convert
        def build(x: Any) -> None:
            self.base(x, training=False)

        def forward(x: Any) -> None:
            with record_outputs(self._held.layers) as recorded:
                predictions.update(predictions_by_task(self.base, self.base(x, training=False)))
            for tensor in [t for of_layer in recorded.values() for t in of_layer]:
                shapes.append(tensor.shape.as_list())
                dtypes.append(tensor.dtype.name)

        # Traced and thrown away: works for every kind of model, and variables are made outside of the trace.
        with tf.init_scope():
            if functional_inputs(self.base) is None:
                # Building runs a subclassed model's `call` as well, so the pass that is recorded comes after it.
                tf.function(build).get_concrete_function(specs)
            tf.function(forward, autograph=False).get_concrete_function(specs)
        # A functional model knows the order of its outputs as the user wrote them.
        self._held.tasks = list(functional_outputs(self.base) or predictions)
        self._held.predictions = {task: tf.TensorSpec(p.shape, p.dtype) for task, p in predictions.items()}
        if self.alignment is not None:
            self.alignment.build_for(self.tasks, shapes, "float64" if "float64" in dtypes else "float32")
        self._held.inputs = specs
        self._is_ready = True
        self.built = True
        if self.compiled:
            self._finish_compile()

    def get_build_config(self) -> dict[str, Any] | None:
        """Return the specs of the inputs that the weights were made for; `None` before."""
        return None if self._held.inputs is None else {"inputs": specs_to_config(self._held.inputs)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Create the weights again from what `get_build_config` returned."""
        self.make_ready(specs_from_config(config["inputs"]))

    # --- compile ------------------------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: dict[str, float] | None = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
        auto_scale_loss: bool = True,
        *,
        discriminator_optimizer: Any = None,
    ) -> None:
        """Set optimizers, losses and metrics, as `keras.Model.compile`, with dicts keyed by task.

        Args:
            optimizer: trains the base; a name or an optimizer. With `gradient_accumulation_steps` it follows the mean
                of the batches' gradients: the large batch's where each batch has as many labels of every task.
            loss: `{task: loss}`, or one loss for every task. Losses with `reduction="sum"` are refused.
            loss_weights: `{task: c_t}`; a missing task weighs 1.
            metrics: `{task: metrics}`, over labelled rows that all weigh 1.
            weighted_metrics: `{task: metrics}`, over labelled rows with their sample weight.
            run_eagerly: run the steps as plain Python.
            steps_per_execution: steps of one call of the compiled function.
            jit_compile: compile the steps with XLA; `"dense"` compiles a training step but for the tables, whose
                gradients stay sparse. `"auto"`: nothing on CPUs or with loops; else `"dense"` where it can be had,
                see `gradalign.dense_part`, and Keras' choice for others.
            auto_scale_loss: scale the loss where the base computes in float16.
            discriminator_optimizer: of the alignment's own weights; default the kind of `optimizer` at ten times its
                learning rate.

        Raises:
            UserError: also for what a mode cannot do, see `gradalign.tasks.mode_arguments`.
        """
        if loss is None:
            raise UserError("compile needs a loss for each task, such as loss={'click': 'binary_crossentropy'}.")
        if discriminator_optimizer is not None and not self._has_discriminator:
            raise UserError("discriminator_optimizer is given, but the model has no alignment to train with it.")
        optimizer = keras.optimizers.get(optimizer)
        if discriminator_optimizer is not None:
            discriminator_optimizer = keras.optimizers.get(discriminator_optimizer)
        replicas = self.distribute_strategy.num_replicas_in_sync
        check_optimizers(optimizer, discriminator_optimizer, replicas)
        obstacle = dense_obstacle(self.base, run_eagerly=run_eagerly, replicas=replicas)
        mode = chosen_mode(jit_compile, obstacle, loops=self.alignment is not None and loops_over_steps(self.base))
        check_compiled(mode, run_eagerly, self.base)
        self._held.dense = DensePart(self.base) if mode == "dense" else None
        super().compile(
            optimizer=optimizer,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=False if mode == "dense" else mode,
            auto_scale_loss=auto_scale_loss,
        )
        self._held.compile = {
            "optimizer": self.optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
            "auto_scale_loss": auto_scale_loss,
        }
        self.loss = loss
        self.discriminator_optimizer = None
        if self._has_discriminator:
            self.discriminator_optimizer = discriminator_optimizer or discriminator_optimizer_like(self.optimizer)
        self._logs = None
        if self._is_ready:
            self._finish_compile()

    def _finish_compile(self) -> None:
        """Do the part of `compile` that needs the tasks and the weights."""
        given = self._held.compile
        aligned = [] if self.alignment is None else self.alignment.aligned_tasks
        trained = losses_by_task(given["loss"], self.tasks, aligned)
        self._held.losses = trained
        self._logs = TaskLogs(
            loss_weights_by_task(given["loss_weights"], self.tasks, trained),
            TaskMetrics(
                metrics_by_task(given["metrics"], list(trained), "metrics"),
                metrics_by_task(given["weighted_metrics"], list(trained), "weighted_metrics"),
            ),
        )
        if not self.optimizer.built and self.trainable_variables:
            self.optimizer.build(self.trainable_variables)
        if self._has_discriminator and not self.discriminator_optimizer.built:
            self.discriminator_optimizer.build(self._alignment_variables)

    def get_compile_config(self) -> dict[str, Any]:
        """Return the arguments of `compile`, serialised; empty before it was called."""
        if not self.compiled:
            return {}
        arguments = {**self._held.compile, "discriminator_optimizer": self.discriminator_optimizer}
        config: dict[str, Any] = keras.saving.serialize_keras_object(arguments)
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile with what `get_compile_config` returned."""
        self.compile(**keras.saving.deserialize_keras_object(config))

    # `optimizer` trains the base; the alignment's weights belong to `discriminator_optimizer`. Keras' own machinery
    # (building the optimizer, averaged weights) takes these lists for what `optimizer` trains.
    @property
    def trainable_variables(self) -> list[Any]:
        """What `optimizer` trains: the base's trainable variables."""
        return list(self.base.trainable_variables)

    @property
    def trainable_weights(self) -> list[Any]:
        """What `optimizer` trains: the base's trainable weights."""
        return list(self.base.trainable_weights)

    # --- loops --------------------------------------------------------------------------------------------------

    @functools.wraps(keras.Model.fit)
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train, with the arguments of `keras.Model.fit`; the first call sets the schedule's total steps."""
        arguments = read_fit_arguments(super().fit, args, kwargs)
        if not self.compiled:
            raise UserError("Call compile() before fit().")
        if arguments.data_specs is not None:
            self.prepare(*arguments.data_specs[:2])
        if self._is_ready and not self.trainable_variables:
            warnings.warn(
                f'Model "{self.base.name}" has no trainable weights: fit leaves it as it is.',
                GradAlignWarning,
                stacklevel=2,
            )
        if self.alignment is not None:
            self.alignment.set_total_steps(arguments.total_steps)
        history = super().fit(**arguments.given)
        if self._has_discriminator and arguments.given["epochs"] > 0:
            self.discriminator_optimizer.finalize_variable_values(self._alignment_variables)
        return history

    def prepare(self, x: Any, y: Any = None) -> None:
        """Create everything that the shapes of the data decide, before the first step.

        Args:
            x: inputs of a batch, tensors or `tf.TensorSpec`s.
            y: its labels, in the same way.
        """
        # Replicas make no variables of their own, so all are made here.
        with self.distribute_strategy.scope():
            self.make_ready_for((x, y))
            if self._logs is not None and isinstance(y, Mapping) and set(self._held.losses) <= set(y):
                self._logs.metrics.build(y, self._held.predictions)

    def make_train_function(self, force: bool = False) -> None:
        """Make the function that `fit` calls; its first call also checks that the alignment reaches `shared`."""
        super().make_train_function(force=force)
        if not self._first_batch_is_checked and (self.alignment is not None or not self._is_ready):
            self._first_batch_is_checked = True
            self.train_function: Any = checked_on_first_batch(self, self.train_function)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, with the arguments of `keras.Model.evaluate`; the alignment takes no part."""
        self._evaluating = True
        try:
            args, kwargs = read_data_arguments(super().evaluate, args, kwargs)
            return super().evaluate(*args, **kwargs)
        finally:
            self._evaluating = False

    @functools.wraps(keras.Model.predict)
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict, with the arguments of `keras.Model.predict`; returns `{task: array}`."""
        args, kwargs = read_data_arguments(super().predict, args, kwargs)
        return super().predict(*args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch, with the arguments of `keras.Model.train_on_batch`."""
        refuse_class_weight(
            inspect.signature(super().train_on_batch).bind(*args, **kwargs).arguments.get("class_weight")
        )
        return super().train_on_batch(*args, **kwargs)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, with the arguments of `keras.Model.test_on_batch`."""
        self._evaluating = True
        try:
            return super().test_on_batch(*args, **kwargs)
        finally:
            self._evaluating = False

    # --- saving -------------------------------------------------------------------------------------------------

    def save_own_variables(self, store: Any) -> None:
        """Save the state of random numbers, which Keras leaves out: a loaded model goes on with the same dropout."""
        for number, state in enumerate(seed_states(self)):
            store[f"seed_{number}"] = keras.ops.convert_to_numpy(state)

    def load_own_variables(self, store: Any) -> None:
        """Restore what `save_own_variables` saved."""
        for number, state in enumerate(seed_states(self)):
            state.assign(store[f"seed_{number}"])

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, with layers named by their paths."""
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "base": keras.saving.serialize_keras_object(self.base),
            "shared": list(self._held.layers) or None,
            "alignment": None if self.alignment is None else keras.saving.serialize_keras_object(self.alignment),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> MultiTaskModel:
        """Make a model of what `get_config` returned."""
        base = keras.saving.deserialize_keras_object(config["base"], custom_objects=custom_objects)
        alignment = config["alignment"]
        if alignment is not None:
            alignment = keras.saving.deserialize_keras_object(alignment, custom_objects=custom_objects)
        return cls(base, config["shared"], alignment, name=config["name"], dtype=config["dtype"])
