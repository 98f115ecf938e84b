"""Copies of a model train on as the model would: pickle, deepcopy, weights alone, a backup after a kill, clones."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import WIDTH, Subclassed, aligned, all_state, assert_same, data, discriminator, functional, restart

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

COPIES = {"pickle": lambda thing: pickle.loads(pickle.dumps(thing)), "deepcopy": copy.deepcopy}
BASES = {
    "functional": lambda: functional(normalize=True, dropout=0.4, towers=False),
    "subclassed": lambda: Subclassed(dropout=0.4, towers=False),
}


def start(base, **settings):
    model = aligned(base, schedule="linear", total_steps=20, discriminator=discriminator(), **settings)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, loss="binary_crossentropy", metrics={"buy": ["AUC"]}, run_eagerly=True)
    return model


def step(model, seed=0):
    x, y = data(8, missing=0.2, seed=seed)
    return model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history


def assert_states(left, right):
    named, others = all_state(left), list(all_state(right).values())
    for (name, value), other in zip(named.items(), others, strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("how", "kind"), [("pickle", "functional"), ("deepcopy", "functional"), ("pickle", "subclassed")]
)
def test_a_copy_trains_on_as_the_model(how, kind):
    model = start(BASES[kind]())
    if kind == "functional":  # before training too; a subclassed base has no weights then
        fresh = COPIES[how](model)
        assert_states(model, fresh)
    step(model)
    twin = COPIES[how](model)
    assert twin.compiled and twin.base is not model.base and twin.alignment is not model.alignment
    assert_states(model, twin)
    assert_same(step(model, seed=1), step(twin, seed=1), rtol=1e-6)
    assert_states(model, twin)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_an_alignment(how):
    gradients = {"click": tf.constant([[1.0, 2.0], [0.5, -1.0]]), "buy": tf.constant([[-1.0, 0.0], [3.0, 1.0]])}
    new = COPIES[how](ga.AdversarialAlignment(0.3, normalize="l2", schedule="linear", total_steps=7, tasks=["click"]))
    assert new.weight == 0.3 and new.normalize == "l2" and new.tasks == ["click"] and not new.variables[3:]
    alignment = ga.AdversarialAlignment(0.3, schedule="linear", total_steps=7)
    loss = alignment(gradients)
    alignment.advance()
    new = COPIES[how](alignment)
    assert (int(new.step), int(new.total_steps)) == (1, 7) and new.aligned_tasks == ["click", "buy"]
    assert new.discriminator is not alignment.discriminator
    np.testing.assert_array_equal(new(gradients), loss)


def test_a_clone_has_weights_of_its_own():
    # Keras clones a model that is not its own functional one from its config, compile's part included.
    model = start(functional(dropout=0.4))
    step(model)
    clone = keras.models.clone_model(model)
    assert clone.tasks == model.tasks and clone.shared == model.shared
    assert int(clone.alignment.step) == 0 and int(clone.optimizer.iterations) == 0
    pairs = list(zip(model.base.trainable_variables, clone.base.trainable_variables, strict=True))
    pairs += zip(model.alignment.trainable_variables, clone.alignment.trainable_variables, strict=True)
    for old, new in pairs:
        assert old is not new and old.shape == new.shape
        assert not np.array_equal(old.numpy(), new.numpy()) or "kernel" not in old.path
    before = [v.numpy() for v in model.base.variables]
    step(clone)
    for value, variable in zip(before, model.base.variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())
    uncompiled = ga.MultiTaskModel.from_config(model.get_config())
    assert not uncompiled.compiled and uncompiled.tasks == model.tasks


def test_weights_alone_without_compile(tmp_path):
    model = start(BASES["subclassed"]())
    step(model)
    model.save_weights(tmp_path / "model.weights.h5")
    other = aligned(BASES["subclassed"](), schedule="linear", total_steps=20, discriminator=discriminator())
    other.prepare({"x": tf.TensorSpec([None, WIDTH])})
    other.load_weights(tmp_path / "model.weights.h5")
    assert int(other.alignment.step) == 1
    pairs = zip(
        [*model.base.variables, *model.alignment.variables],
        [*other.base.variables, *other.alignment.variables],
        strict=True,
    )
    for old, new in pairs:
        np.testing.assert_array_equal(old.numpy(), new.numpy(), err_msg=old.path)


KILLED = """
import os, random, signal, sys
import numpy as np
import gradalign
gradalign.MultiTaskModel  # the name loads Keras by itself
import keras
folder, kill = sys.argv[1], sys.argv[2] == "kill"
given = np.load(folder + "/data.npz")
random.seed(1)
x = keras.Input((6,), name="x")
s = keras.layers.Dense(5, "tanh", name="encoder")(keras.layers.BatchNormalization()(x))
s = keras.layers.Dropout(0.4)(s)
base = keras.Model({"x": x}, {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in ("click", "buy")})
alignment = gradalign.AdversarialAlignment(0.5, schedule="linear", discriminator=keras.layers.Dense(2))
model = gradalign.MultiTaskModel(base, "encoder", alignment)
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="binary_crossentropy", run_eagerly=True)

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kill and int(self.model.alignment.step) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

callbacks = [
    keras.callbacks.BackupAndRestore(folder + "/backup" + sys.argv[3]),
    keras.callbacks.ModelCheckpoint(folder + "/epoch.keras"),
    Kill(),
]
y = {"click": given["click"], "buy": given["buy"]}
model.fit({"x": given["x"]}, y, batch_size=8, shuffle=False, epochs=3, verbose=0, callbacks=callbacks)
variables = [*model.base.variables, *model.optimizer.variables, *model.alignment.variables]
variables += model.discriminator_optimizer.variables
np.savez(folder + "/state.npz", *[keras.ops.convert_to_numpy(v) for v in variables])
"""


@pytest.mark.slow
def test_a_backup_after_a_kill_ends_with_the_weights_of_one_run(monkeypatch, tmp_path):
    x, y = data(16, missing=0.2)
    np.savez(tmp_path / "data.npz", x=x["x"], **y)

    def run(*arguments):
        # In this process: the start of another takes longer than the training.
        restart()
        monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path), *arguments])
        exec(KILLED, {})
        with np.load(tmp_path / "state.npz") as stored:
            return [stored[name] for name in stored.files]

    whole = run("go", "1")
    # In the middle of the second epoch, with no chance to tidy up; the checkpoint is the first epoch's.
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "kill", "2"], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert int(keras.models.load_model(tmp_path / "epoch.keras").alignment.step) == 2
    resumed = run("go", "2")
    for left, right in zip(whole, resumed, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-7)
