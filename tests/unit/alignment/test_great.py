"""GREAT's gradient-alignment layers: one whole step against PyTorch, by hand, and what they leave alone."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
import torch.nn.functional as F

import gradalign as ga
from gradalign.alignment import mlp_discriminator
from gradalign.diagnostics.second_order import norms_at_shared
from gradalign.gradients import replace_task_gradients, task_gradients
from gradalign.layers import Tower
from tests.unit.small_models import TASKS, data, functional, weights

from .test_adversarial import Smooth

pytestmark = pytest.mark.usefixtures("no_first_batch_check")
SCALES = np.array([[1.0, 0.5, -2.0, 3.0, 0.0], [0.25, 1.5, 1.0, -1.0, 2.0]])
WEIGHT, ANCHOR, RATE, OWN_RATE = 0.7, 0.3, 0.25, 0.5
LOSS_WEIGHTS = {"click": 0.3, "buy": 2.0}


@pytest.fixture
def floatx():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def compiled(alignment, base=None, **arguments):
    model = ga.MultiTaskModel(base or functional(), "encoder", alignment)
    own = {} if alignment is None else {"discriminator_optimizer": keras.optimizers.SGD(OWN_RATE)}
    arguments = {"loss_weights": LOSS_WEIGHTS, "run_eagerly": True, **own, **arguments}
    model.compile(keras.optimizers.SGD(RATE), loss="binary_crossentropy", **arguments)
    return model


def great(weight=WEIGHT, **settings):
    return ga.GREATAlignment(weight, schedule=1.0, discriminator=Smooth(2, dtype=keras.config.floatx()), **settings)


def batch(rows=12):
    """With labels that are missing, and sample weights of one task."""
    x, y = data(rows, missing=0.3)
    return x, y, {"buy": np.random.default_rng(3).uniform(0.5, 2.0, rows)}


# --- in a model -------------------------------------------------------------------------------------------------------


def test_a_step_is_that_of_pytorch(floatx):
    """Encoder: the scaled gradients; towers: their own; discriminator and scales: both sides of the game."""
    alignment = great(anchor=ANCHOR)
    model = compiled(alignment)
    alignment.gradient_layers.assign(SCALES)
    variables = [*model.base.trainable_variables, *alignment.trainable_variables]
    torches = {v.path: torch.tensor(v.numpy(), requires_grad=True) for v in variables}
    x, y, sample_weight = batch()
    model.train_on_batch(x, y, sample_weight)

    def dense(name, rows):
        return rows @ torches[f"{name}/kernel"] + torches[f"{name}/bias"]

    scales = torches[alignment.gradient_layers.path]
    shared = torch.tanh(dense("encoder", torch.tensor(x["x"], dtype=torch.float64)))
    at_shared, total, rows = torch.zeros_like(shared), 0.0, []
    for number, task in enumerate(TASKS):
        label = torch.tensor(y[task][:, 0], dtype=torch.float64)
        weight = torch.tensor(sample_weight.get(task, np.ones(len(label)))) * ~label.isnan()
        logit = dense(task, torch.tanh(dense(f"tower_{task}", shared)))[:, 0]
        losses = F.binary_cross_entropy_with_logits(logit, label.nan_to_num(), reduction="none")
        factor = LOSS_WEIGHTS[task] / weight.sum()
        [g] = torch.autograd.grad((weight * losses).sum(), shared, retain_graph=True)
        at_shared += factor * torch.tensor(SCALES[number]) * g
        total = total + factor * (weight * losses).sum()
        scaled = (scales[number] * g)[weight > 0]
        rows.append(scaled / scaled.square().sum(1).mean().sqrt())
    below = [torches[path] for path in torches if "encoder" in path]
    above = [torches[v.path] for v in model.base.trainable_variables if "encoder" not in v.path]
    own = [torches[v.path] for v in alignment.trainable_variables if v.path != alignment.gradient_layers.path]
    hidden, logits = own[:2], own[2:]
    scores = [torch.tanh(q @ hidden[0] + hidden[1]) @ logits[0] + logits[1] for q in rows]
    entropy = sum(F.cross_entropy(z, torch.full((len(z),), t)) for t, z in enumerate(scores)) / 2
    found = {
        **dict(zip(below, torch.autograd.grad(shared, below, at_shared, retain_graph=True), strict=True)),
        **dict(zip(above, torch.autograd.grad(total, above, retain_graph=True), strict=True)),
        **dict(zip(own, torch.autograd.grad(entropy, own, retain_graph=True), strict=True)),
    }
    [of_scales] = torch.autograd.grad(entropy, scales)
    found[scales] = -WEIGHT * of_scales + ANCHOR * 2 * (scales.detach() - 1) / scales.numel()
    assert len(found) == len(variables) and float(of_scales.abs().min(1).values.max()) > 1e-6
    for variable in variables:
        start = torches[variable.path]
        rate = RATE if any(variable is v for v in model.base.trainable_variables) else OWN_RATE
        wanted = (start - rate * found[start]).detach()
        np.testing.assert_allclose(variable.value, wanted, rtol=1e-10, atol=1e-12, err_msg=variable.path)


def test_at_strength_0_a_step_is_the_plain_one():
    """To the last bit, also where the discriminator learns; and the scales stay ones."""
    found = []
    for alignment in (None, great(0.0, discriminator_steps=2, fraction=0.5)):
        random.seed(0)
        model = compiled(alignment)
        model.train_on_batch(*batch())
        found.append(weights(model.base))
    for plain, aligned in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, aligned)
    assert (alignment.gradient_layers.numpy() == 1.0).all()
    assert not np.array_equal(alignment.discriminator.hidden.kernel, Smooth(2).hidden.kernel_initializer((5, 5)))


def test_the_discriminator_takes_its_share_and_factors_and_the_encoder_all_rows(floatx, monkeypatch):
    """Drawn rows that are all of them, in another order, make the step of all; so do gradients told as products."""
    told, scaled_factors = [], ga.GREATAlignment._scaled_factors

    def noted(alignment, task, factors):
        told.append(alignment)
        return scaled_factors(alignment, task, factors)

    monkeypatch.setattr(ga.GREATAlignment, "_scaled_factors", noted)
    default = ga.GREATAlignment(WEIGHT, schedule=1.0)
    given = mlp_discriminator(5, 2, dtype="float64")
    drawn = ga.GREATAlignment(WEIGHT, schedule=1.0, discriminator=given, fraction=0.5)
    monkeypatch.setattr(drawn, "sampled_rows", lambda count: tf.range(count)[::-1])
    start, found = given.get_weights(), []
    for alignment in (default, drawn):
        random.seed(0)
        x = keras.Input((6,), name="x")
        shared = keras.layers.Dense(5, "tanh", name="encoder")(x)
        model = compiled(alignment, keras.Model({"x": x}, {t: Tower((3,), "relu", name=t)(shared) for t in TASKS}))
        alignment.discriminator.set_weights(start)
        alignment.gradient_layers.assign(SCALES)
        model.train_on_batch(*batch())
        found.append(weights(model.base) + [v.numpy() for v in alignment.trainable_variables])
    assert set(map(id, told)) == {id(default)}
    for of_products, of_rows in zip(*found, strict=True):
        np.testing.assert_allclose(of_rows, of_products, rtol=1e-10, atol=1e-13)


def test_the_check_says_that_it_works_at_first_order():
    """Where a second-order path would be dead: linear heads, unit length."""
    model = compiled(great(normalize="l2"), functional(towers=False))
    report = ga.check_second_order(model, batch())
    assert report.ok and report.second == 0.0 and report.agrees is None
    assert "works at first order, by design" in str(report) and "dead path" not in str(report)
    assert not norms_at_shared(model, batch()).sentences()


def test_a_loaded_model_goes_on(tmp_path):
    model = compiled(great())
    model.alignment.gradient_layers.assign(SCALES)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.train_on_batch(*batch())
    moved = model.alignment.gradient_layers.numpy()
    assert np.abs(moved - SCALES).max() > 0
    np.testing.assert_array_equal(moved, loaded.alignment.gradient_layers)
    for mine, other in zip(weights(model.base), weights(loaded.base), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert not any("gradient_layers" in v.path for v in model.base.variables)


# --- by itself --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per", "shapes", "scales"),
    [
        ("row", [(2,), (2, 1)], [np.array([1.0, 2.0]), np.array([[3.0], [4.0]])]),
        ("position", [(3, 2), (3, 1)], [np.array([1.0, 2.0]), np.array([3.0])]),
    ],
)
def test_scales_of_several_shared_tensors(per, shapes, scales):
    random = np.random.default_rng(0)
    grads = {task: {n: tf.constant(random.normal(size=(4, *s))) for n, s in enumerate(shapes)} for task in "abc"}
    alignment = ga.GREATAlignment(schedule=1.0, per=per, tasks=["a", "c"])
    assert alignment.transform(grads).keys() == {"a", "c"}
    alignment.gradient_layers.assign(
        [np.concatenate([np.ravel(s) for s in scales]), np.zeros(4 if per == "row" else 3)]
    )
    found = alignment.transform(grads)
    for number, scale in enumerate(scales):
        np.testing.assert_array_equal(found["a"][number], scale * grads["a"][number])
        assert not found["c"][number].numpy().any()


def test_a_replaced_gradient_in_float16_on_the_loss_scale():
    """1e-8 is 0 in float16, and 32,768 times that is not; what reaches the tensor is rounded once."""
    x = tf.constant([[1.0, -2.0]], tf.float16)
    g = tf.constant([[1.0, 1.0]], tf.float16)
    new = tf.constant([[1.0 + 2.0**-22, 3.0]], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        nothing = replace_task_gradients(x, {"a": g}, {"a": new}, {"a": 2.0**-4})
        scaled = 2.0**15 * nothing
    assert nothing.dtype == tf.float32 and float(nothing) == 0.0
    at_x = tape.gradient(scaled, x)
    assert at_x.dtype == tf.float16
    np.testing.assert_array_equal(at_x, [[2.0**-11, 2.0**12]])


def test_bad_use():
    with pytest.raises(ga.UserError, match=r"anchor of an alignment is .*; received -0\.1"):
        ga.GREATAlignment(anchor=-0.1)
    for name, value in {"reach": "shared", "every": 2}.items():
        with pytest.raises(TypeError, match=name):
            ga.GREATAlignment(**{name: value})
    x = tf.ones([2, 1])
    with pytest.raises(ga.UserError, match='no factor for task "buy"'):
        replace_task_gradients(x, {"buy": x}, {"buy": x}, {"click": 1.0})
    _, grads = task_gradients(lambda s: {"a": s[:, 0] ** 2, "b": s[:, 0]}, x)
    with pytest.raises(ga.UserError, match='no gradient for task "b"'):
        replace_task_gradients(x, {"a": grads["a"]}, grads, {"a": 1.0, "b": 1.0})
