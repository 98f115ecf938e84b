"""The guard of an alignment: when it steps down and up again, what it says and logs, and under a real fit."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

import gradalign as ga
from gradalign.alignment import CosineAlignment
from gradalign.callbacks import AdversaryGuard, GradientMonitor
from gradalign.diagnostics.alignment_trouble import TroubleLimits
from tests.unit.small_models import aligned, data, functional

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

FINE = {"accuracy": 0.8, "ratio": 0.1}
PINNED = {"accuracy": 0.99, "ratio": 0.1}
CHANCE = {"accuracy": 0.61, "ratio": 0.1}
LARGE = {"accuracy": 0.8, "ratio": 3.0}  # at strength 0.5 the share is 0.6


def a_look(step, accuracy, ratio):
    return {
        "step": step,
        "a_discriminator_accuracy": accuracy + 0.01,
        "b_discriminator_accuracy": accuracy - 0.01,
        "discriminator_chance": 0.5,
        "discriminator_label_aware_chance": 0.6,
        "second_to_first_order_ratio": ratio,
    }


def guarded(looks, **settings):
    """Damping after each look, of an alignment of strength 0.5; the guard; the logs."""
    monitor = GradientMonitor(data(4))
    guard = AdversaryGuard(monitor, **settings)
    model = aligned(functional())
    guard.set_model(model)
    guard.on_train_begin()
    guard.on_epoch_begin(0)
    found, logs = [], {}
    for number, look in enumerate(looks):
        monitor.history.append(a_look(number + 1, **look))
        guard.on_train_batch_end(number)
        found.append(float(model.alignment.damping.value))
    guard.on_epoch_end(0, logs)
    return found, guard, logs


def test_it_steps_down_after_patience_and_up_after_recovery():
    looks = [PINNED, FINE, PINNED, PINNED, PINNED, PINNED, PINNED, PINNED, FINE, FINE, FINE, FINE]
    with pytest.warns(ga.GradAlignWarning) as said:
        found, guard, logs = guarded(looks, patience=2, recovery=2, factor=0.5, pause_below=0.2)
    # Down at looks 4 and 6; at 8 an eighth is below 0.2, which pauses. Up from 0 to 0.2, then by halves.
    assert found == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0, 0, 0.2, 0.2, 0.4]
    assert guard.history == [
        {"step": 4, "damping": 0.5, "reason": "pinned"},
        {"step": 6, "damping": 0.25, "reason": "pinned"},
        {"step": 8, "damping": 0.0, "reason": "pinned"},
        {"step": 10, "damping": 0.2, "reason": "recovery"},
        {"step": 12, "damping": 0.4, "reason": "recovery"},
    ]
    in_looks = [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0, 0, 0.2, 0.2]
    assert logs == {"alignment_damping": pytest.approx(np.mean(in_looks))}
    assert [str(warning.message) for warning in said] == [
        "The discriminator named 99.0% of the gradients right in 2 looks in a row, so AdversaryGuard takes the "
        "alignment's strength times 0.5 from step 4 on."
    ]


def test_a_discriminator_at_the_chance_that_labels_give_pauses_at_once_with_factor_0():
    with pytest.warns(
        ga.GradAlignWarning, match=r"named 61\.0% .* labels alone give 60\.0%, in 2 looks .* pauses the alignment"
    ):
        found, guard, _ = guarded([CHANCE, CHANCE, CHANCE, FINE], patience=2, recovery=1, factor=0.0)
    assert found == [1, 0, 0, 1] and [change["reason"] for change in guard.history] == ["chance", "recovery"]


def test_a_share_that_is_too_large_is_damped_until_it_is_not_and_does_not_swing_back():
    with pytest.warns(ga.GradAlignWarning, match=r"had 60\.0% of the gradient at the shared tensor in a look,"):
        found, _, _ = guarded([LARGE] * 4 + [FINE] * 2, patience=1, recovery=1)
    # At 0.5 it is 0.75 / 1.75, below a half; one step up it would be 0.6, so there it stays until the ratio falls.
    assert found == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]


def test_trouble_of_another_kind_starts_the_count_anew_and_limits_can_be_left_out():
    found, guard, logs = guarded([PINNED, CHANCE, LARGE] * 2, patience=2)
    assert found == [1] * 6 and guard.history == [] and logs == {"alignment_damping": 1.0}
    off = {"ceiling": None, "chance_margin": None, "most_share": None}
    assert guarded([PINNED, CHANCE, LARGE], patience=1, **off)[0] == [1, 1, 1]
    nothing = a_look(1, float("nan"), float("nan"))
    assert TroubleLimits(0.9, 0.1, 0.5).trouble(nothing, 1.0) is None


def test_it_says_each_reason_once():
    looks = [PINNED, FINE, PINNED, FINE, CHANCE]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        guarded(looks, patience=1, recovery=1)
    assert len(caught) == 2


class Force(keras.callbacks.Callback):
    """Set the discriminator, two logits of five entries, ahead of each epoch."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def on_epoch_begin(self, epoch, logs=None):
        self.model.alignment.discriminator.layers[-1].set_weights([self.kernels[epoch]])


def test_under_fit_it_acts_on_a_forced_discriminator_and_recovers():
    """Linear heads: a task's gradients lie along its kernel, so a discriminator is easily made right or blind."""
    x = keras.Input((6,), name="x")
    s = keras.layers.Dense(5, name="encoder")(x)
    base = keras.Model({"x": x}, {t: keras.layers.Dense(1, name=t)(s) for t in ("click", "buy")})
    base.get_layer("click").kernel.assign([[1.0], [0.0], [0.0], [0.0], [0.0]])
    base.get_layer("buy").kernel.assign([[0.0], [1.0], [0.0], [0.0], [0.0]])
    inputs, _ = data(8)
    y = {task: np.full(8, 100.0) for task in ("click", "buy")}  # gradients point down both kernels
    knows, half = np.zeros((5, 2)), np.zeros((5, 2))
    knows[0, 0] = knows[1, 1] = -1.0
    half[:2, 0] = -1.0  # always click: right in one task of two, as blind guesses are
    own = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, use_bias=False)])
    model = aligned(base, weight=0.4, normalize="l2", discriminator=own)
    still = keras.optimizers.SGD(0.0)
    model.compile(still, loss="mse", discriminator_optimizer=keras.optimizers.SGD(0.0), run_eagerly=True)
    monitor = GradientMonitor((inputs, y))
    guard = AdversaryGuard(monitor, patience=1, recovery=1, chance_margin=None)
    kernels = [knows, half, half]
    with pytest.warns(ga.GradAlignWarning, match=r"named 100\.0% of the gradients right"):
        logs = model.fit(
            inputs, y, batch_size=8, epochs=3, callbacks=[Force(kernels), monitor, guard], verbose=0
        ).history
    assert logs["click_discriminator_accuracy"] == [1, 1, 1] and logs["buy_discriminator_accuracy"] == [1, 0, 0]
    assert logs["alignment_damping"] == [1, 0.5, 1]
    assert logs["alignment_strength"] == pytest.approx([0.4, 0.2, 0.4])
    guard.on_epoch_begin(3)
    with pytest.raises(ga.UserError, match="took none in this epoch"):
        guard.on_epoch_end(3, {})  # before the monitor's, or without one


def test_wrong_uses_are_said():
    monitor = GradientMonitor(data(4))
    for arguments, words in (
        ({"ceiling": 1.5}, "ceiling is an accuracy above 0, up to 1, or None; received 1.5"),
        ({"chance_margin": -0.1}, "chance_margin is 0 or more"),
        ({"most_share": 1.0}, "most_share is between 0 and 1"),
        ({"patience": 0}, "patience is a number of looks, 1 or more; received 0"),
        ({"recovery": 1.5}, "recovery is a number of looks"),
        ({"factor": 1.0}, "factor is a number from 0 up to, but without, 1"),
        ({"pause_below": -1}, "pause_below is a number from 0"),
    ):
        with pytest.raises(ga.UserError, match=words):
            AdversaryGuard(monitor, **arguments)
    with pytest.raises(ga.UserError, match="monitor is the GradientMonitor"):
        AdversaryGuard(None)
    for model, words in (
        (ga.MultiTaskModel(functional(), "encoder"), "this model has none"),
        (ga.MultiTaskModel(functional(), "encoder", CosineAlignment()), "CosineAlignment has no discriminator"),
    ):
        guard = AdversaryGuard(monitor, most_share=None)
        guard.set_model(model)
        with pytest.raises(ga.UserError, match=words):
            guard.on_train_begin()
