"""One result in every run mode: eager, graph, compiled, several steps at a time, mixed precision."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .run_modes import compiled_steps
from .small_models import (
    TASKS,
    Batches,
    aligned,
    all_state,
    assert_same,
    data,
    discriminator,
    forever,
    functional,
    restart,
)

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

# One step at a time in a graph: tests/parity/test_fit.py.
MODES = {
    "compiled": {"jit_compile": True},
    "eight at a time": {"steps_per_execution": 8},
}


def train(mode, *, rows=18, optimizer=None, policy="float32"):
    restart()
    keras.config.set_dtype_policy(policy)
    model = aligned(functional(normalize=True), normalize="batch", schedule="linear", discriminator=discriminator())
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.5),
        loss="binary_crossentropy",
        metrics={"buy": ["mse"]},
        **mode,
    )
    x, y = data(rows, missing=0.3)
    history = model.fit(x, y, batch_size=6, shuffle=False, verbose=0).history
    return model, history


@pytest.fixture(scope="module")
def eager():
    model, history = train({"run_eagerly": True}, rows=54)  # nine steps: eight, and one left over
    return all_state(model), history


@pytest.mark.parametrize("mode", MODES)
def test_modes_agree(mode, eager, grappler):
    state, history = eager
    model, found = train(MODES[mode], rows=54)
    assert model.jit_compile is (mode == "compiled")
    assert bool(compiled_steps(model)) == (mode == "compiled")
    assert_same(history, found, rtol=1e-4, atol=1e-5)
    assert_same(state, all_state(model), rtol=1e-4, atol=1e-5)
    assert int(model.alignment.step) == int(model.alignment.total_steps) == 9


def test_a_model_that_xla_does_not_compile_is_refused():
    words = keras.Input((), name="words", dtype="string")
    numbers = keras.layers.StringLookup(vocabulary=["a", "b"], name="lookup")(words)
    s = keras.layers.Embedding(3, 4, name="encoder")(numbers)
    model = aligned(keras.Model(words, {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in TASKS}))
    with pytest.raises(ga.UserError, match=r'jit_compile=True cannot be had.*"lookup" \(StringLookup\)'):
        model.compile("sgd", loss="binary_crossentropy", jit_compile=True)
    model.compile("sgd", loss="binary_crossentropy")
    assert not model.jit_compile


class Traced(ga.MultiTaskModel):
    """Counts how often Python runs the step: once for each batch in eager mode, once for each trace in a graph."""

    count = 0

    def train_step(self, batch):
        type(self).count += 1
        return super().train_step(batch)


class Memory(keras.callbacks.Callback):
    """Resident kilobytes after 100 and after 400 steps."""

    def __init__(self):
        super().__init__()
        self.kilobytes = []

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.alignment.step) in (100, 400):
            lines = Path("/proc/self/status").read_text().splitlines()
            self.kilobytes.append(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads resident memory as Linux tells it")
def test_three_hundred_steps_do_not_grow():
    model, memory = aligned(functional(towers=False), weight=0.1, discriminator=discriminator()), Memory()
    model.compile("sgd", loss="binary_crossentropy", metrics={"buy": ["accuracy"]})
    x, y = data(1000)
    model.fit(x, y, batch_size=5, epochs=2, verbose=0, callbacks=[memory])
    before, after = memory.kilobytes
    assert after - before < 12 * 1024


@pytest.mark.parametrize("kind", ["data set", "several steps", "PyDataset"])  # "several steps" is of arrays
def test_one_trace_for_fifty_steps(kind):
    # The last of the ten batches is smaller, but for PyDataset, whose batches are all alike here.
    Traced.count = 0
    alignment = ga.AdversarialAlignment(0.1, discriminator=discriminator())
    model = Traced(functional(towers=False), "encoder", alignment)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model.compile(
        keras.optimizers.SGD(schedule),
        loss="binary_crossentropy",
        steps_per_execution=2 if kind == "several steps" else 1,
    )
    x, y = data(60 if kind == "PyDataset" else 57)
    given = {
        "data set": lambda: (tf.data.Dataset.from_tensor_slices((x, y)).batch(6),),
        "PyDataset": lambda: (Batches(x, y),),
    }.get(kind, lambda: (x, y))()
    arguments = {"batch_size": 6} if len(given) == 2 else {}
    model.fit(*given, epochs=3, verbose=0, **arguments)
    model.fit(*given, epochs=2, verbose=0, **arguments)
    assert int(model.optimizer.iterations) == 50
    assert Traced.count == 1
    # The discriminator's rate is ten times the schedule's value.
    now = 0.1 * 0.5 ** (50 / 10)
    np.testing.assert_allclose(model.discriminator_optimizer.learning_rate, 10 * now, rtol=1e-5)


# --- precision ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_float32():
    return train({"run_eagerly": True}, optimizer=keras.optimizers.SGD(0.1))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_like_float32(policy, in_float32):
    expected, history = in_float32
    model, found = train({"run_eagerly": True}, optimizer=keras.optimizers.SGD(0.1), policy=policy)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")
    assert not isinstance(model.discriminator_optimizer, keras.optimizers.LossScaleOptimizer)
    assert {v.dtype for v in model.alignment.trainable_variables} == {"float32"}
    for key, values in history.items():
        np.testing.assert_allclose(found[key], values, rtol=0.1, atol=0.05, err_msg=key)
    for left, right in zip(expected.base.trainable_variables, model.base.trainable_variables, strict=True):
        np.testing.assert_allclose(left.value, right.value, atol=0.03, err_msg=left.path)


def test_float64_throughout():
    keras.config.set_floatx("float64")
    model, _ = train({"run_eagerly": True}, optimizer=keras.optimizers.SGD(0.1), rows=12, policy="float64")
    variables = [*model.base.trainable_variables, *model.alignment.trainable_variables]
    assert {v.dtype for v in variables} == {"float64"}
    assert all(np.isfinite(v.value).all() for v in variables)


# --- optimizers -----------------------------------------------------------------------------------------------------


OPTIMIZERS = {
    "averaged, decay": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_momentum=0.5),
    "by name": lambda: "adagrad",
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    # Fitting in one go, or by hand with the same optimizers and the model's own gradients, is the same.
    models = []
    x, y = data(16)
    for _ in range(2):
        restart()
        model = aligned(functional(towers=False))
        model.compile(OPTIMIZERS[name](), loss="binary_crossentropy", run_eagerly=True)
        models.append(model)
    first, second = models
    assert type(first.discriminator_optimizer) is type(first.optimizer)
    first.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for start in (0, 8):
        part = {k: v[start : start + 8] for k, v in x.items()}, {k: v[start : start + 8] for k, v in y.items()}
        with tf.GradientTape() as tape:
            forward = second.forward(part, training=True, aligned=True)
            total = second.weighted_losses(forward) + second.alignment(second.task_gradients_of(forward), forward.masks)
        sides = second.base.trainable_variables, second.alignment.trainable_variables
        gradients = tape.gradient(total, sides)
        second.optimizer.apply_gradients(zip(gradients[0], sides[0], strict=True))
        second.discriminator_optimizer.apply_gradients(zip(gradients[1], sides[1], strict=True))
        second.alignment.advance()
    second.optimizer.finalize_variable_values(second.base.trainable_variables)
    second.discriminator_optimizer.finalize_variable_values(second.alignment.trainable_variables)
    assert_same(all_state(first), all_state(second), rtol=1e-4, atol=1e-6)


# --- the total number of steps --------------------------------------------------------------------------------------


class Advancing(ga.MultiTaskModel):
    """Takes only that part of a step that the schedule knows of."""

    def train_step(self, batch):
        self.alignment.advance()
        return {"loss": tf.zeros([])}


def advancing(schedule, **settings):
    alignment = ga.AdversarialAlignment(0.5, schedule=schedule, discriminator=keras.layers.Dense(2), **settings)
    model = Advancing(functional(towers=False), "encoder", alignment)
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    return model


def test_total_steps():
    x, y = data(10)
    cases = {
        "arrays": ((x, y), {"batch_size": 4, "epochs": 2}, 6),
        "split": ((x, y), {"batch_size": 4, "epochs": 2, "validation_split": 0.5}, 4),
        "data set": ((tf.data.Dataset.from_tensor_slices((x, y)).batch(4),), {"epochs": 2}, 6),
        "PyDataset": ((Batches(x, y, rows=5),), {"epochs": 2}, 4),
        "generator": ((forever(x, y),), {"epochs": 2, "steps_per_epoch": 2}, 4),
        "default batch, initial epoch": ((x, y), {"epochs": 3, "initial_epoch": 1}, 2),
    }
    model = advancing("linear")
    for name, (given, arguments, total) in cases.items():
        model.alignment.reset_schedule()
        model.fit(*given, verbose=0, **arguments)
        assert int(model.alignment.total_steps) == total, name
        assert int(model.alignment.step) == total, name
        assert float(model.alignment.strength) == pytest.approx(0.5), name


def test_unknown_total_steps():
    x, y = data(24)
    model = advancing("ganin")
    with pytest.raises(ga.UserError, match=r"needs the total number of steps.*steps_per_epoch= to fit"):
        model.fit(forever(x, y), verbose=0)
    model = advancing("ganin", total_steps=100)
    model.fit(forever(x, y), verbose=0, steps_per_epoch=2)
    assert int(model.alignment.total_steps) == 100


def test_the_total_is_kept_until_the_schedule_is_reset():
    x, y = data(6)
    model = advancing("linear")
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)
    model.fit(x, y, batch_size=6, epochs=4, verbose=0)
    assert (int(model.alignment.step), int(model.alignment.total_steps)) == (6, 2)
    model.alignment.reset_schedule()
    assert float(model.alignment.strength) == 0.0
    model.fit(x, y, batch_size=6, epochs=3, verbose=0)
    assert (int(model.alignment.step), int(model.alignment.total_steps)) == (3, 3)


def test_a_schedule_of_progress_moves_every_step():
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(float(self.model.alignment.strength))

    x, y = data(24)
    settings = {"schedule": lambda progress: progress**2, "discriminator": discriminator()}
    model = aligned(functional(towers=False), weight=2.0, **settings)
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    model.fit(x, y, batch_size=6, verbose=0, callbacks=[Watch()])
    np.testing.assert_allclose(seen, [2.0 * (i / 4) ** 2 for i in range(4)])
