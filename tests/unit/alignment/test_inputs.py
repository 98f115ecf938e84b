"""What an adversary is shown, and what it is made of: sign-free and balanced rows, spectral kernels, more updates."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import gradalign as ga
from gradalign.alignment import AdversarialAlignment, SpectralDense, mlp_discriminator
from gradalign.diagnostics.second_order import norms_at_shared
from gradalign.errors import UserError
from tests.unit.small_models import data, discriminator, functional

from . import asserts
from .asserts import value_and_gradients
from .test_adversarial import make

pytestmark = pytest.mark.usefixtures("no_first_batch_check")
POSITIVES = {"a": [True, True, True, True, True, False], "b": [False, False, True, False, False, False]}


# --- sign-free --------------------------------------------------------------------------------------------------------


def rows_of_model(labels, *, normalize, classes=None):
    """What an alignment with `sign_free` compares, of one batch of a model; a third task has `classes` logits."""
    random.seed(0)
    tasks = ("click", "buy")
    base = functional(tasks)
    if classes:
        kind = keras.layers.Dense(classes, name="kind")(base.get_layer("encoder").output)
        base = keras.Model(base.inputs, {**dict(zip(tasks, base.outputs, strict=True)), "kind": kind})
    alignment = AdversarialAlignment(
        schedule=1.0, normalize=normalize, sign_free=True, discriminator=discriminator(tasks=3 if classes else 2)
    )
    model = ga.MultiTaskModel(base, "encoder", alignment)
    losses = dict.fromkeys(tasks, "binary_crossentropy")
    if classes:
        losses["kind"] = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=losses)
    x, _ = data(8)
    forward = model.forward((x, labels), training=True, aligned=True)
    given = model.task_gradients_of(forward), forward.masks, None
    positives = model.positives_of(forward)
    assert set(positives) == set(tasks)
    plain = AdversarialAlignment(schedule=1.0, normalize=normalize, discriminator=alignment.discriminator)
    plain.build_from_config(alignment.get_build_config())
    return alignment.rows_of(*given, positives).gradients.numpy(), plain.rows_of(*given).gradients.numpy()


def labels_of(seed):
    random = np.random.default_rng(seed)
    return {task: random.integers(2, size=(8, 1)).astype("float32") for task in ("click", "buy")}


def test_no_label_shows_in_the_rows():
    """At unit length every label flipped leaves every row as it is; without `sign_free` all turn round."""
    labels = labels_of(0)
    flipped = {task: 1 - y for task, y in labels.items()}
    found, plain = rows_of_model(labels, normalize="l2")
    found_flipped, plain_flipped = rows_of_model(flipped, normalize="l2")
    np.testing.assert_allclose(found_flipped, found, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(plain_flipped, -plain, rtol=1e-4, atol=1e-6)
    signs = 1 - 2 * np.stack([labels[task] for task in ("click", "buy")])
    np.testing.assert_array_equal(found, signs * plain)


def test_the_length_of_a_row_still_tells_how_much_its_label_surprised():
    labels = labels_of(0)
    found, _ = rows_of_model(labels, normalize="none")
    flipped, _ = rows_of_model({task: 1 - y for task, y in labels.items()}, normalize="none")
    cosines = (found * flipped).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(flipped, axis=-1)
    np.testing.assert_allclose(cosines, 1.0, rtol=1e-4)
    assert np.abs(np.linalg.norm(found, axis=-1) / np.linalg.norm(flipped, axis=-1) - 1).max() > 0.05


def test_rows_of_several_logits_stay_as_they_are():
    labels = {**labels_of(0), "kind": np.arange(8)[:, None] % 3}
    found, plain = rows_of_model(labels, normalize="l2", classes=3)
    np.testing.assert_array_equal(found[2], plain[2])
    assert not np.array_equal(found[0], plain[0])


@pytest.mark.parametrize("argument", ["sign_free", "balance_labels"])
def test_both_ask_for_the_labels(argument):
    with pytest.raises(UserError, match=r"pass positives=\{task: booleans"):
        make(**{argument: True})(asserts.sampled())
    with pytest.raises(UserError, match='positives names an unknown task "d"'):
        make(**{argument: True})(asserts.sampled(), positives={"d": [True] * 6})


def test_sign_free_rows_are_sampled_with_their_labels():
    """Rows whose positive ones point the other way: turned, all are alike."""
    signs = tf.constant([1.0, -1.0, -1.0, 1.0], tf.float64)
    grads = {task: signs[:, None] * tf.ones([4, 2], tf.float64) for task in ("a", "b")}
    alignment = ga.CosineAlignment(schedule=1.0, sign_free=True, fraction=0.5)
    moments = ga.MomentAlignment(schedule=1.0, sign_free=True, fraction=0.5, normalize="l2")
    positives = {"a": signs < 0, "b": signs < 0}
    for _ in range(3):
        for kind in (alignment, moments):
            assert float(kind(grads, positives=positives)) == pytest.approx(0.0, abs=1e-12)
    rows = moments.checked_rows(grads, positives=positives)
    np.testing.assert_allclose(rows.gradients, 2**-0.5)


# --- class-balanced rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [make, lambda **given: ga.MomentAlignment(0.7, schedule=1.0, **given)])
def test_more_rows_of_one_label_change_nothing(kind):
    """A task's positive rows three times over, which without the balance counts."""
    grads, once = asserts.sampled(), tf.range(6)
    thrice = {"a": tf.constant([0, 1, 2, 3, 4] * 3 + [5]), "b": tf.constant([2] * 11 + [0, 1, 3, 4, 5])}
    more = {task: tf.gather(g, thrice.get(task, tf.concat([once, once, once[:4]], 0))) for task, g in grads.items()}
    masks = {"c": [True] * 6 + [False] * 10}
    labels = {task: np.array(POSITIVES[task])[np.array(thrice[task])] for task in POSITIVES}

    def loss(balanced, g, masks, positives):
        alignment = kind(balance_labels=balanced, normalize="none")
        return float(alignment(g, masks, positives=positives if balanced else None))

    plain = loss(True, grads, None, POSITIVES)
    assert loss(True, more, masks, labels) == pytest.approx(plain, rel=1e-12)
    assert loss(False, more, masks, None) != pytest.approx(plain, rel=1e-3)


def test_loss_and_accuracy_of_balanced_rows_by_hand():
    """Scores are the entries of a row. Of a, positive rows cost CE(2, 0) and CE(0, 2), the negative one CE(0, 4)."""
    identity = keras.layers.Dense(2, dtype="float64", kernel_initializer="identity")
    alignment = AdversarialAlignment(schedule=1.0, normalize="none", discriminator=identity, balance_labels=True)
    grads = {"a": tf.constant([[2.0, 0.0], [0.0, 2.0], [0.0, 4.0]], tf.float64)}
    grads["b"] = tf.constant([[0.0, 1.0]] * 3, tf.float64)
    positives = {"a": [True, True, False], "b": [True] * 3}
    loss = alignment(grads, positives=positives, update_metrics=True)
    of_a = (np.log1p(np.exp(-2)) + np.log1p(np.exp(2))) / 2 / 2 + np.log1p(np.exp(4)) / 2
    assert float(loss) == pytest.approx((of_a + np.log1p(np.exp(-1))) / 2, rel=1e-12)
    # a: half of its positive rows, none of its negative; b has one kind of rows.
    assert float(alignment.accuracy.result()) == pytest.approx((0.25 + 1.0) / 2)


# --- spectral normalisation -------------------------------------------------------------------------------------------


def test_kernels_have_a_largest_singular_value_of_one():
    layers = mlp_discriminator(5, 3, hidden=(7, 4), dtype="float64", spectral_norm=True).layers
    for layer in layers:
        assert np.linalg.norm(layer.divided_kernel(), 2) == pytest.approx(1.0, rel=1e-10)
    layers[0].kernel.assign(np.random.default_rng(0).normal(size=(5, 7)))
    for _ in range(200):
        layers[0].divided_kernel(training=True)
    assert np.linalg.norm(layers[0].divided_kernel(), 2) == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_spectral_gradients_are_those_of_the_divided_kernel(mode):
    """Against PyTorch, which differentiates the largest singular value itself."""
    layer = SpectralDense(3, activation="tanh", dtype="float64")
    x = np.random.default_rng(0).normal(size=(4, 5))
    layer.build((None, 5))

    def run():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(layer(tf.constant(x), training=True) ** 2)
        return y, tape.gradient(y, layer.trainable_variables)

    y, gradients = asserts.in_mode(run, mode)()
    kernel, bias = (torch.tensor(w.numpy(), requires_grad=True) for w in (layer.kernel, layer.bias))
    wanted = torch.tanh(torch.tensor(x) @ kernel / torch.linalg.matrix_norm(kernel, 2) + bias).square().sum()
    wanted.backward()
    assert float(y) == pytest.approx(wanted.item(), rel=1e-10)
    np.testing.assert_allclose(gradients[0], kernel.grad, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(gradients[1], bias.grad, rtol=1e-8)


def test_a_kernel_of_zeros_stays_one():
    layer = SpectralDense(2, kernel_initializer="zeros")
    assert not layer(tf.ones([1, 3]), training=True).numpy().any()
    assert np.isfinite(layer.direction).all()


def test_a_spectral_discriminator_is_a_setting_of_the_default_one():
    alignment = AdversarialAlignment(spectral_norm=True, schedule=1.0, objective="confusion")
    _, at_grads, at_weights = value_and_gradients(alignment, asserts.sampled())
    assert {type(layer) for layer in alignment.discriminator.layers} == {SpectralDense}
    assert all(np.abs(g).max() > 0 for g in [*at_grads.values(), *at_weights])
    asserts.assert_round_trip(AdversarialAlignment, spectral_norm=True, schedule=1.0)
    with pytest.raises(UserError, match="spectral_norm=True is of the default discriminator"):
        AdversarialAlignment(spectral_norm=True, discriminator=discriminator())


# --- updates ahead ----------------------------------------------------------------------------------------------------


def trained(steps=3, *, epochs=1, strategy=None, kind=AdversarialAlignment, **arguments):
    """A model after `epochs` steps on one batch, with `steps` updates of its discriminator in each."""
    random.seed(0)
    x, y = data(6, missing=0.2)

    def build():
        alignment = kind(
            0.5,
            schedule=1.0,
            objective="non_saturating",
            discriminator=discriminator(),
            discriminator_steps=steps,
            sign_free=True,
        )
        model = ga.MultiTaskModel(functional(towers=False), "encoder", alignment)
        model.compile(
            keras.optimizers.SGD(0.1),
            loss="binary_crossentropy",
            discriminator_optimizer=keras.optimizers.SGD(0.5),
            **arguments,
        )
        return model

    if strategy is None:
        model = build()
    else:
        with strategy.scope():
            model = build()
    if epochs:
        model.fit(x, y, batch_size=6, epochs=epochs, shuffle=False, verbose=0)
    return model


@pytest.fixture
def floatx():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def test_the_discriminator_descends_thrice_on_the_same_gradients(floatx):
    """By hand: its weights after three steps of its own loss; the model's with the discriminator of the third."""
    model = trained(3, run_eagerly=True)
    start = trained(3, epochs=0, run_eagerly=True)
    x, y = data(6, missing=0.2)
    alignment = start.alignment
    for _ in range(3):
        with tf.GradientTape() as tape:
            forward = start.forward((x, y), training=True, aligned=True)
            given = start.task_gradients_of(forward), forward.masks, None
            total = start.weighted_losses(forward) + alignment(*given, positives=start.positives_of(forward))
        at_model, at_own = tape.gradient(total, [start.trainable_variables, alignment.trainable_variables])
        for variable, g in zip(alignment.trainable_variables, at_own, strict=True):
            variable.assign_sub(0.5 * g)
    for variable, g in zip(start.trainable_variables, at_model, strict=True):
        variable.assign_sub(0.1 * g)
    assert int(model.discriminator_optimizer.iterations) == 3 and int(model.optimizer.iterations) == 1
    variables = [m.trainable_variables + m.alignment.trainable_variables for m in (model, start)]
    for mine, wanted in zip(*variables, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-10, atol=1e-13)
    assert int(alignment.step) == 0 and int(model.alignment.step) == 1


@pytest.mark.parametrize("way", ["jit", "replicas"])
def test_updates_ahead_and_scaled_gradients_in_every_mode(way, floatx, mirrored_strategy):
    """With the layers that replace the gradients at the shared tensor: two steps, so that the second one is scaled."""
    wanted = trained(2, epochs=2, kind=ga.GREATAlignment, run_eagerly=True)
    strategy = mirrored_strategy if way == "replicas" else None
    model = trained(
        2, epochs=2, kind=ga.GREATAlignment, strategy=strategy, jit_compile=way == "jit", run_eagerly=way != "jit"
    )
    assert keras.ops.convert_to_numpy(model.discriminator_optimizer.iterations) == 4
    assert np.abs(wanted.alignment.gradient_layers - 1.0).max() > 1e-3
    found, others = (
        [keras.ops.convert_to_numpy(v) for v in m.base.variables + m.alignment.variables] for m in (model, wanted)
    )
    for mine, other in zip(found, others, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


# --- in a model -------------------------------------------------------------------------------------------------------


def test_a_model_without_a_discriminator(tmp_path):
    base = functional(towers=False)
    model = ga.MultiTaskModel(base, "encoder", ga.CosineAlignment(0.5, schedule=1.0, sign_free=True))
    with pytest.raises(UserError, match="no alignment to train with it"):
        model.compile("sgd", loss="binary_crossentropy", discriminator_optimizer="sgd")
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    x, y = data(12, missing=0.2)
    logs = model.fit(x, y, verbose=0).history
    assert sorted(logs) == ["alignment_loss", "buy_loss", "click_loss", "loss"]
    assert 0 < logs["alignment_loss"][0] < 2 and int(model.alignment.step) == 1
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.discriminator_optimizer is None and int(again.alignment.step) == 1
    assert again.fit(x, y, verbose=0).history.keys() == logs.keys()
    with pytest.raises(TypeError, match="normalize"):
        ga.CosineAlignment(normalize="batch")


CHECKED = {
    "wasserstein": {"objective": "wasserstein", "spectral_norm": True, "sign_free": True},
    "cosine": None,
}


@pytest.mark.parametrize("name", CHECKED)
def test_finite_differences_agree(name, floatx):
    """With what the model descends; and a check leaves the power iteration where it was."""
    alignment = AdversarialAlignment(0.5, **CHECKED[name]) if CHECKED[name] else ga.CosineAlignment(0.5)
    base = functional(activation="tanh") if name == "cosine" else functional(towers=False)
    model = ga.MultiTaskModel(base, "encoder", alignment)
    model.compile("sgd", loss="binary_crossentropy")
    before = [v.numpy() for v in alignment.variables]
    report = ga.check_second_order(model, data(12))
    assert report.agrees and report.reverses and report.ok, str(report)
    for variable, value in zip(alignment.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_a_distance_of_zero_is_told_from_a_saturated_discriminator():
    x = keras.Input((6,), name="x")
    shared = keras.layers.Dense(4, "tanh", name="encoder")(x)
    head = keras.layers.Dense(1, "sigmoid")
    base = keras.Model({"x": x}, {"click": head(shared), "buy": head(shared)})
    model = ga.MultiTaskModel(base, "encoder", ga.MomentAlignment(0.5, schedule=1.0))
    model.compile("sgd", loss="binary_crossentropy")
    x, y = data(12)
    batch = x, {"click": y["click"], "buy": y["click"]}
    report = norms_at_shared(model, batch)
    assert "its loss is flat there" in str(report) and "discriminator" not in str(report)
    model = ga.MultiTaskModel(base, "encoder", ga.CosineAlignment(0.5, schedule=1.0))
    model.compile("sgd", loss="binary_crossentropy")
    assert str(norms_at_shared(model, batch)).endswith("use smooth activations such as gelu in the tower.")
