"""Small multi-task models and data that several test files train."""

from __future__ import annotations

import math
import random
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import gradalign as ga

TASKS = ("click", "buy")
WIDTH = 6


def restart(seed=1):
    """Start layer names and weights anew, but keep TensorFlow's kernels: each takes a millisecond to make again."""
    with mock.patch.object(tf, "executing_eagerly", return_value=False):  # else Keras drops them
        keras.utils.clear_session(free_memory=False)
    random.seed(seed)  # from which Keras takes the seed of each layer


def data(rows=24, *, tasks=TASKS, seed=0, missing=0.0, column=True):
    """`(x, y)`, arrays keyed by name; a share `missing` of the labels is NaN, another part in each task."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, WIDTH)).astype("float32")
    y = {}
    for number, task in enumerate(tasks):
        label = (x[:, number] + 0.5 * rng.normal(size=rows) > 0).astype("float32")
        label[rng.random(rows) < missing] = np.nan
        y[task] = label[:, None] if column else label
    return {"x": x}, y


def functional(
    tasks=TASKS,
    *,
    activation="tanh",
    dropout=0.0,
    normalize=False,
    regularizer=None,
    towers=True,
    name="base",
):
    """`{"x": (B, 6)}` to `{task: (B, 1)}` by way of the layer "encoder", with a tower for each task or heads alone."""
    x = keras.Input((WIDTH,), name="x")
    # Probabilities in float16 would lose the tails.
    head = "float64" if keras.config.floatx() == "float64" else "float32"
    shared = keras.layers.Dense(5, activation="tanh", name="encoder", kernel_regularizer=regularizer)(x)
    if normalize:
        shared = ga.layers.BatchNormalization(name="norm")(shared)
    outputs = {}
    for task in tasks:
        h = keras.layers.Dense(4, activation=activation, name=f"tower_{task}")(shared) if towers else shared
        if dropout:
            h = keras.layers.Dropout(dropout, name=f"dropout_{task}")(h)
        outputs[task] = keras.layers.Dense(1, activation="sigmoid", name=task, dtype=head)(h)
    return keras.Model({"x": x}, outputs, name=name)


@keras.saving.register_keras_serializable(package="gradalign_tests")
class Subclassed(keras.Model):
    """The same, subclassed, with dropout and batch normalisation."""

    def __init__(self, tasks=TASKS, dropout=0.0, towers=True, **kwargs):
        super().__init__(**kwargs)
        self.task_names, self.rate = list(tasks), dropout
        self.encoder = keras.layers.Dense(5, activation="tanh", name="encoder")
        self.norm = ga.layers.BatchNormalization(name="norm")
        self.towers = [keras.layers.Dense(4, activation="tanh", name=f"tower_{task}") for task in tasks if towers]
        self.drop = keras.layers.Dropout(dropout, name="drop")
        self.heads = [keras.layers.Dense(1, activation="sigmoid", name=task) for task in tasks]

    def call(self, inputs, training=None):
        shared = self.norm(self.encoder(inputs["x"]), training=training)
        hidden = [tower(shared) for tower in self.towers] or [shared] * len(self.heads)
        hidden = [self.drop(h, training=training) for h in hidden]
        return {task: head(h) for task, head, h in zip(self.task_names, self.heads, hidden, strict=True)}

    def get_config(self):
        return {**super().get_config(), "tasks": self.task_names, "dropout": self.rate, "towers": bool(self.towers)}


def discriminator(width=5, tasks=2):
    """One hidden layer, where the discriminator is not the matter: the default's two cost more than a base's towers."""
    return keras.Sequential(
        [keras.Input((width,)), keras.layers.Dense(3, "tanh", name="hidden"), keras.layers.Dense(tasks, name="logits")],
        name="discriminator",
    )


def aligned(base, *, shared="encoder", weight=0.5, schedule=1.0, **settings):
    return ga.MultiTaskModel(base, shared, ga.AdversarialAlignment(weight, schedule=schedule, **settings))


def unchecked(patch):
    """Leave out the check on the first batch, and that this batch is handed on apart."""
    patch.setattr("gradalign.multi_task_model.checked_on_first_batch", lambda model, function: function)


def weights(model):
    return [keras.ops.convert_to_numpy(v) for v in model.variables]


def all_state(model):
    """Every array that training changes, by path: base, alignment, both optimizers."""
    state = {f"base/{v.path}/{i}": keras.ops.convert_to_numpy(v) for i, v in enumerate(model.base.variables)}
    state |= {f"optimizer/{v.path}": keras.ops.convert_to_numpy(v) for v in model.optimizer.variables}
    if model.alignment is not None:
        state |= {
            f"alignment/{v.path}/{i}": keras.ops.convert_to_numpy(v) for i, v in enumerate(model.alignment.variables)
        }
        state |= {
            f"discriminator/{v.path}": keras.ops.convert_to_numpy(v) for v in model.discriminator_optimizer.variables
        }
    return state


def assert_same(left, right, **tolerance):
    assert list(left) == list(right)
    for name in left:
        np.testing.assert_allclose(left[name], right[name], err_msg=name, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


def warnings_of(act):
    """The messages of our own warnings while `act()` runs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in caught if warning.category is ga.GradAlignWarning]


class Batches(keras.utils.PyDataset):
    """The data in batches of `rows`, the last of what is left, with weights where they are given."""

    def __init__(self, x, y, weights=(), rows=6):
        super().__init__()
        self.parts, self.rows = (x, y, *weights), rows

    def __len__(self):
        return math.ceil(len(next(iter(self.parts[0].values()))) / self.rows)

    def __getitem__(self, index):
        rows = slice(self.rows * index, self.rows * index + self.rows)
        return tuple(part and {name: of_name[rows] for name, of_name in part.items()} for part in self.parts)


def forever(x, y, rows=6):
    """A generator of batches without an end."""

    def generate():
        start = 0
        while True:
            indices = np.arange(start, start + rows) % len(y["buy"])
            yield {k: v[indices] for k, v in x.items()}, {k: v[indices] for k, v in y.items()}
            start += rows

    return generate()
