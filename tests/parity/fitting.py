"""Three steps of `ga.MultiTaskModel` under `fit`, with every step's weights and gradients on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

import gradalign as ga

from .keras_side import assign, base_model, discriminator_model, library_model, named_variables, values
from .oracle import Batch
from .problems import FIELDS, VOCABULARY, Case, batch_of, start_weights

STEPS, WEIGHT, LOSS_WEIGHTS, RATE, ADVERSARY_RATE = 3, 0.7, {"buy": 0.5}, 0.05, 0.3
MODES = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "jit": {"jit_compile": True}}


class Recording:
    """Mixed into an optimizer: keeps each variable's latest gradient, as the optimizer got it, in a variable."""

    def build(self, variables):
        super().build(variables)
        if not hasattr(self, "recorded"):
            self.recorded = [self.add_variable_from_reference(v, name="recorded") for v in variables]
            self.positions = {v.path: i for i, v in enumerate(variables)}

    def update_step(self, gradient, variable, learning_rate):
        kept = self.recorded[self._get_variable_index(variable)]
        self.assign(kept, tf.convert_to_tensor(gradient))  # a lookup's gradient is sparse, with repeated rows
        super().update_step(gradient, variable, learning_rate)

    def gradient(self, variable: keras.Variable) -> np.ndarray:
        return self.recorded[self.positions[variable.path]].numpy()


class RecordingSGD(Recording, keras.optimizers.SGD):
    pass


class RecordingAdam(Recording, keras.optimizers.Adam):
    pass


class Recorder(keras.callbacks.Callback):
    """The weights before and the gradients in each step."""

    def __init__(self, variables: Mapping[str, keras.Variable], model_optimizer, adversary_optimizer) -> None:
        super().__init__()
        self.variables, self.weights, self.gradients = variables, [], []
        self.optimizers = {True: adversary_optimizer, False: model_optimizer}

    def on_train_batch_begin(self, batch, logs=None):
        self.weights.append(values(self.variables))

    def on_train_batch_end(self, batch, logs=None):
        self.gradients.append(
            {n: self.optimizers[n.startswith("discriminator/")].gradient(v) for n, v in self.variables.items()}
        )


@dataclass
class Fitted:
    model: ga.MultiTaskModel
    history: dict[str, list[float]]
    start: dict[str, np.ndarray]
    weights: list[dict[str, np.ndarray]]  # before each step
    gradients: list[dict[str, np.ndarray]]  # in each step
    last: dict[str, np.ndarray]  # weights after the last step
    data: tf.data.Dataset


def loss_of(case: Case) -> keras.losses.Loss:
    if case.classes > 1:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.BinaryCrossentropy(from_logits=True)


def dataset(case: Case, batches: Sequence[Batch], library: bool) -> tf.data.Dataset:
    """(x, y, sample_weight), one element a batch; the first task is not in the sample weights."""
    rows = len(batches[0].ids)

    def joined(of_batch):
        return np.concatenate([of_batch(batch) for batch in batches])

    ids = joined(lambda b: b.ids).astype("int32")
    x = {f"field_{i}": ids[:, i] % (VOCABULARY // FIELDS) for i in range(FIELDS)} if library else {"ids": ids}
    if case.row_task:
        x["which"] = joined(lambda b: b.row_task).astype("int32")
    y = {task: joined(lambda b, t=task: b.labels[t])[:, None] for task in case.names}
    w = {task: joined(lambda b, t=task: b.weights[t]) for task in batches[0].weights}
    return tf.data.Dataset.from_tensor_slices((x, y, w) if w else (x, y)).batch(rows)


def fit(case: Case, mode: str, optimizer: str, *, library: bool = False, **settings: object) -> Fitted:
    """Three steps on three batches, one an epoch, so that the history has every step's numbers.

    The model is built here of plain Keras layers, or with `library=True` by `architectures.shared_private`.
    """
    batches = [batch_of(case, seed) for seed in range(STEPS)]
    base = library_model(case) if library else base_model(case)
    discriminator = discriminator_model(case.tasks)
    variables = named_variables(base, discriminator)
    start = start_weights(case)
    assign(variables, start)
    alignment = ga.AdversarialAlignment(
        WEIGHT,
        discriminator=discriminator,
        normalize=case.normalize,
        row_task="which" if case.row_task else None,
        **settings,
    )
    model = ga.MultiTaskModel(base, shared="shared_embedding" if library else "shared", alignment=alignment)
    kind, extra = {"sgd": (RecordingSGD, {}), "adam": (RecordingAdam, {"epsilon": 1e-30})}[optimizer]
    optimizers = kind(RATE, **extra), kind(ADVERSARY_RATE, **extra)
    model.compile(
        optimizers[0],
        loss={task: "binary_crossentropy" if library else loss_of(case) for task in case.names},
        loss_weights={task: LOSS_WEIGHTS.get(task, 1.0) for task in case.names},
        discriminator_optimizer=optimizers[1],
        **MODES[mode],
    )
    recorder = Recorder(variables, *optimizers)
    data = dataset(case, batches, library)
    history = model.fit(data, epochs=STEPS, steps_per_epoch=1, shuffle=False, verbose=0, callbacks=[recorder])
    return Fitted(model, history.history, start, recorder.weights, recorder.gradients, values(variables), data)
