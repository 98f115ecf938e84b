"""One result in every run mode: eager, graph, compiled, several steps at a time, mixed precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import TASKS, WIDTH, Batches, aligned, all_state, assert_same, data, forever, functional

MODES = {
    "graph": {},
    "compiled": {"jit_compile": True},
    "four at a time": {"steps_per_execution": 4},
}


def train(
    mode, *, normalize="batch", rows=36, epochs=2, base=None, optimizer=None, seed=1, policy="float32", **settings
):
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(seed)
    model = aligned(
        functional(normalize=True) if base is None else base(), normalize=normalize, schedule="linear", **settings
    )
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.5),
        loss="binary_crossentropy",
        metrics={"buy": ["AUC"]},
        **mode,
    )
    x, y = data(rows, missing=0.3)
    history = model.fit(x, y, batch_size=6, shuffle=False, epochs=epochs, verbose=0).history
    return model, history


@pytest.fixture(scope="module")
def eager():
    model, history = train({"run_eagerly": True})
    return all_state(model), history


@pytest.mark.parametrize("mode", MODES)
def test_modes_agree(mode, eager):
    state, history = eager
    model, found = train(MODES[mode])
    assert model.jit_compile is (mode == "compiled")
    assert_same(history, found, rtol=1e-4, atol=1e-5)
    assert_same(state, all_state(model), rtol=1e-4, atol=1e-5)
    assert int(model.alignment.step) == 12 and int(model.alignment.total_steps) == 12


def test_compiled_means_compiled():
    # An operation that XLA cannot compile: if the step quietly ran uncompiled, this would pass.
    class Host(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.py_function(lambda v: v, [x], tf.float32), x.shape)

    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(3, name="encoder")(x)
    base = keras.Model({"x": x}, {t: keras.layers.Dense(1, "sigmoid", name=t)(Host()(s)) for t in TASKS})
    x, y = data(8)
    model = ga.MultiTaskModel(base)
    model.compile("sgd", loss="binary_crossentropy", jit_compile=True)
    with pytest.raises(Exception, match=r"XLA|compil|unsupported"):
        model.fit(x, y, verbose=0)


class Traced(ga.MultiTaskModel):
    count = 0

    def train_step(self, batch):
        type(self).count += 1
        return super().train_step(batch)


@pytest.mark.parametrize("kind", ["arrays", "data set", "several steps", "PyDataset"])
def test_one_trace_for_fifty_steps(kind):
    Traced.count = 0
    model = Traced(functional(normalize=True), "encoder", ga.AdversarialAlignment(0.1))
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model.compile(
        keras.optimizers.SGD(schedule),
        loss="binary_crossentropy",
        steps_per_execution=2 if kind == "several steps" else 1,
    )
    x, y = data(60)
    given = {
        "data set": lambda: (tf.data.Dataset.from_tensor_slices((x, y)).batch(6, drop_remainder=True),),
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


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_like_float32(policy):
    expected, history = train({"run_eagerly": True}, optimizer=keras.optimizers.SGD(0.1))
    model, found = train({"run_eagerly": True}, optimizer=keras.optimizers.SGD(0.1), policy=policy)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")
    assert not isinstance(model.discriminator_optimizer, keras.optimizers.LossScaleOptimizer)
    assert {v.dtype for v in model.alignment.trainable_variables} == {"float32"}
    for key, values in history.items():
        np.testing.assert_allclose(found[key], values, rtol=0.1, atol=0.05, err_msg=key)
    for left, right in zip(expected.base.trainable_variables, model.base.trainable_variables, strict=True):
        np.testing.assert_allclose(left.value, right.value, atol=0.03, err_msg=left.path)


def test_the_loss_scale_does_not_matter():
    states = []
    for scale in (1.0, 2.0**12):
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=scale)
        model, _ = train({"run_eagerly": True}, optimizer=optimizer, epochs=1, policy="mixed_float16")
        states.append([v.numpy() for v in [*model.base.trainable_variables, *model.alignment.trainable_variables]])
    for left, right in zip(*states, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-3)


def test_a_step_that_overflows_is_skipped_by_both_optimizers():
    keras.config.set_dtype_policy("mixed_float16")
    model = aligned(functional())
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**120)
    model.compile(optimizer, loss="binary_crossentropy", run_eagerly=True, auto_scale_loss=False)
    before = [v.numpy() for v in [*model.base.trainable_variables, *model.alignment.trainable_variables]]
    x, y = data(8)
    model.fit(x, y, verbose=0)
    after = [v.numpy() for v in [*model.base.trainable_variables, *model.alignment.trainable_variables]]
    for left, right in zip(before, after, strict=True):
        np.testing.assert_array_equal(left, right)
    assert float(model.optimizer.scale_loss(1.0)) < 2.0**120


def test_float64_throughout():
    keras.config.set_floatx("float64")
    model, _ = train({"run_eagerly": True}, optimizer=keras.optimizers.SGD(0.1), epochs=1, policy="float64")
    variables = [*model.base.trainable_variables, *model.alignment.trainable_variables]
    assert {v.dtype for v in variables} == {"float64"}
    assert all(np.isfinite(v.value).all() for v in variables)


# --- optimizers -----------------------------------------------------------------------------------------------------


OPTIMIZERS = {
    "averaged": lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5),
    "clipnorm": lambda: keras.optimizers.SGD(0.05, clipnorm=0.1),
    "decay": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "by name": lambda: "adagrad",
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    # Fitting in one go, or by hand with the same optimizers and the model's own gradients, is the same.
    models = []
    x, y = data(24)
    for _ in range(2):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model = aligned(functional())
        model.compile(OPTIMIZERS[name](), loss="binary_crossentropy", run_eagerly=True)
        models.append(model)
    first, second = models
    assert type(first.discriminator_optimizer) is type(first.optimizer)
    first.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for start in (0, 8, 16):
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


def test_total_steps():
    x, y = data(24)
    cases = {
        "arrays": ((x, y), {"batch_size": 5, "epochs": 3}, 15),
        "split": ((x, y), {"batch_size": 5, "epochs": 3, "validation_split": 0.5}, 9),
        "default batch": ((x, y), {"epochs": 2}, 2),
        "data set": ((tf.data.Dataset.from_tensor_slices((x, y)).batch(5),), {"epochs": 2}, 10),
        "PyDataset": ((Batches(x, y),), {"epochs": 2}, 8),
        "generator": ((forever(x, y),), {"epochs": 2, "steps_per_epoch": 3}, 6),
        "initial epoch": ((x, y), {"batch_size": 5, "epochs": 3, "initial_epoch": 1}, 10),
    }
    for name, (given, arguments, total) in cases.items():
        model = aligned(functional(), schedule="linear")
        model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
        model.fit(*given, verbose=0, **arguments)
        assert int(model.alignment.total_steps) == total, name
        assert int(model.alignment.step) == total, name
        assert float(model.alignment.strength) == pytest.approx(0.5), name


def test_unknown_total_steps():
    x, y = data(24)
    model = aligned(functional(), schedule="ganin")
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    with pytest.raises(ga.UserError, match=r"needs the total number of steps.*steps_per_epoch= to fit"):
        model.fit(forever(x, y), verbose=0)
    model = aligned(functional(), schedule="ganin", total_steps=100)
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    model.fit(forever(x, y), verbose=0, steps_per_epoch=2)
    assert int(model.alignment.total_steps) == 100


def test_the_total_is_kept_until_the_schedule_is_reset():
    x, y = data(24)
    model = aligned(functional(), schedule="linear")
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)
    model.fit(x, y, batch_size=6, epochs=10, verbose=0)
    assert (int(model.alignment.step), int(model.alignment.total_steps)) == (48, 8)
    model.alignment.reset_schedule()
    assert float(model.alignment.strength) == 0.0
    model.fit(x, y, batch_size=6, epochs=3, verbose=0)
    assert (int(model.alignment.step), int(model.alignment.total_steps)) == (12, 12)


def test_a_schedule_of_progress_moves_every_step():
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(float(self.model.alignment.strength))

    x, y = data(24)
    model = aligned(functional(), weight=2.0, schedule=lambda progress: progress**2)
    model.compile("sgd", loss="binary_crossentropy")
    model.fit(x, y, batch_size=6, verbose=0, callbacks=[Watch()])
    np.testing.assert_allclose(seen, [2.0 * (i / 4) ** 2 for i in range(4)])
