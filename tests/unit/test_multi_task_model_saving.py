"""Save and load: the next training step is the one that would have come; the exported base has nothing of ours."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import (
    WIDTH,
    Subclassed,
    aligned,
    all_state,
    assert_same,
    data,
    discriminator,
    functional,
    restart,
)

pytestmark = pytest.mark.usefixtures("no_first_batch_check")


def full(base=None, *, optimizer=None, schedule="ganin", **settings):
    """A model with everything that has state: dropout, moving statistics, a schedule, two optimizers with slots."""
    base = functional(normalize=True, dropout=0.4, towers=False) if base is None else base
    model = aligned(base, schedule=schedule, **{"discriminator": discriminator(), **settings})
    model.compile(
        optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        loss={"click": "binary_crossentropy", "buy": keras.losses.BinaryFocalCrossentropy(gamma=1.0)},
        loss_weights={"buy": 0.5},
        metrics={"click": ["AUC"], "buy": [keras.metrics.MeanSquaredError(name="square")]},
        discriminator_optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        run_eagerly=True,
    )
    return model


def step(model, seed=0, epochs=1):
    x, y = data(8, missing=0.2, seed=seed)
    return model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history


BASES = {
    "functional": lambda: functional(normalize=True, dropout=0.4, towers=False),
    "subclassed": lambda: Subclassed(dropout=0.4, towers=False),
}


@pytest.mark.parametrize("kind", BASES)
def test_the_step_after_loading(kind, tmp_path):
    model = full(BASES[kind](), optimizer=keras.optimizers.Adam(0.02))
    step(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    # By value and order: a loaded optimizer or layer may bear another name.
    assert_states(model, loaded)
    assert int(loaded.alignment.step) == 2 and int(loaded.alignment.total_steps) == 2
    expected, found = step(model, seed=1), step(loaded, seed=1)
    assert_same(expected, found, rtol=1e-6)
    assert_states(model, loaded)
    x, _ = data(8)
    np.testing.assert_array_equal(model.predict(x, verbose=0)["buy"], loaded.predict(x, verbose=0)["buy"])


def assert_states(model, loaded):
    left, right = list(all_state(model).values()), list(all_state(loaded).values())
    assert len(left) == len(right)
    for a, b, name in zip(left, right, all_state(model), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_the_step_after_loading_in_a_new_process(tmp_path):
    """A process that imports nothing but `gradalign`, which loads no TensorFlow by itself, and then Keras."""
    model = full()
    step(model)
    model.save(tmp_path / "model.keras")
    x, y = data(8, seed=1)
    np.savez(tmp_path / "data.npz", x=x["x"], **y)
    code = """
import sys, numpy as np
import gradalign
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
import keras
folder = sys.argv[1]
model = keras.models.load_model(folder + "/model.keras")
given = np.load(folder + "/data.npz")
y = {"click": given["click"], "buy": given["buy"]}
model.fit({"x": given["x"]}, y, batch_size=8, shuffle=False, verbose=0)
variables = model.base.variables + model.optimizer.variables + model.alignment.variables
variables += model.discriminator_optimizer.variables
np.savez(folder + "/state.npz", *[keras.ops.convert_to_numpy(v) for v in variables])
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    variables = [*model.base.variables, *model.optimizer.variables, *model.alignment.variables]
    variables += model.discriminator_optimizer.variables
    stored = np.load(tmp_path / "state.npz")
    assert len(stored.files) == len(variables)
    for variable, name in zip(variables, stored.files, strict=True):
        np.testing.assert_allclose(variable.value, stored[name], rtol=1e-6, atol=1e-7, err_msg=variable.path)


def test_settings_survive(tmp_path):
    settings = {"normalize": "l2", "tasks": ["buy", "click"], "reach": "shared", "discriminator": None}
    model = full(schedule="linear", weight=0.3, total_steps=50, **settings)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.tasks == ["click", "buy"] and loaded.shared == ["encoder"] and loaded.name == model.name
    assert loaded.alignment.get_config() == model.alignment.get_config()
    assert isinstance(loaded.discriminator_optimizer, keras.optimizers.SGD)
    assert loaded.discriminator_optimizer.momentum == 0.9
    assert isinstance(loaded.loss["buy"], keras.losses.BinaryFocalCrossentropy) and loaded.loss["buy"].gamma == 1.0
    x, y = data(8)
    expected, found = (each.evaluate(x, y, return_dict=True, verbose=0) for each in (model, loaded))
    assert found == pytest.approx(expected)
    assert set(found) == {"loss", "click_loss", "buy_loss", "click_AUC", "buy_square"}


def test_an_own_discriminator_is_saved(tmp_path):
    own = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)])
    model = full(discriminator=own)
    step(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.alignment.discriminator.layers) == 2
    assert_states(model, loaded)


def test_mixed_precision_is_saved(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = full()
    step(model)
    model.save(tmp_path / "model.keras")
    keras.config.set_dtype_policy("float32")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, keras.optimizers.LossScaleOptimizer)
    assert not isinstance(loaded.optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
    assert_states(model, loaded)
    step(model, seed=1)
    step(loaded, seed=1)
    assert_states(model, loaded)


def test_models_without_alignment_or_compile(tmp_path):
    x, y = data(8)
    plain = ga.MultiTaskModel(functional())
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    assert not loaded.compiled and loaded.alignment is None
    np.testing.assert_array_equal(loaded(x)["buy"], plain(x)["buy"])
    plain.compile("adam", loss="binary_crossentropy", run_eagerly=True)
    plain.fit(x, y, verbose=0)
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    assert_states(plain, loaded)


def test_weights_alone(tmp_path):
    model = full()
    step(model)
    model.save_weights(tmp_path / "model.weights.h5")
    restart(9)
    other = full()
    other.load_weights(tmp_path / "model.weights.h5")
    assert_states(model, other)
    step(model, seed=1)
    step(other, seed=1)
    assert_states(model, other)


def test_the_best_checkpoint_trains_on(tmp_path):
    model = full()
    x, y = data(8)
    path = tmp_path / "best.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(path, monitor="val_click_AUC", mode="max", save_best_only=True)
    history = model.fit(x, y, batch_size=4, epochs=2, validation_data=(x, y), callbacks=[checkpoint], verbose=0).history
    best = keras.models.load_model(path)
    assert best.evaluate(x, y, verbose=0, return_dict=True)["click_AUC"] == pytest.approx(max(history["val_click_AUC"]))
    assert int(best.optimizer.iterations) == 2 * (1 + int(np.argmax(history["val_click_AUC"])))
    best.fit(x, y, verbose=0)


@pytest.mark.parametrize("kind", BASES)
def test_export_ships_the_base_alone(kind, tmp_path):
    base = BASES[kind]()
    model = full(base)
    step(model)
    signature = [{"x": tf.TensorSpec((None, WIDTH), tf.float32, name="x")}] if kind == "subclassed" else None
    base.export(tmp_path / "served", input_signature=signature, verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    for rows in (1, 5):
        x, _ = data(rows)
        found, expected = served.signatures["serving_default"](tf.constant(x["x"])), base(x, training=False)
        assert set(found) == {"click", "buy"}
        for task in found:
            np.testing.assert_allclose(found[task], expected[task], rtol=1e-6, atol=1e-6)
    content = (tmp_path / "served" / "saved_model.pb").read_bytes()
    for word in ("discriminator", "alignment", "reversal", "optimizer", "adam"):
        assert word.encode() not in content.lower(), word
    # The same variables as in the export of a base that was never wrapped.
    untouched = BASES[kind]()
    untouched(x)
    untouched.export(tmp_path / "untouched", input_signature=signature, verbose=False)
    assert exported_shapes(tmp_path / "served") == exported_shapes(tmp_path / "untouched")


def exported_shapes(folder):
    return sorted(tuple(shape) for _, shape in tf.train.list_variables(str(folder / "variables" / "variables")))


def test_predictions_are_those_of_the_base():
    model = full()
    x, _y = data(8)
    step(model)
    expected = model.base.predict(x, verbose=0)
    for task, found in model.predict(x, verbose=0).items():
        np.testing.assert_allclose(found, expected[task], rtol=1e-6)
    assert list(model(x)) == ["click", "buy"]
