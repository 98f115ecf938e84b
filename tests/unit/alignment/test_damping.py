"""Damping: a variable that multiplies the strength; the discriminator learns on as it did."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.alignment import AdversarialAlignment, CosineAlignment
from tests.unit.alignment.asserts import sampled, value_and_gradients
from tests.unit.small_models import aligned, functional


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdversarialAlignment(0.5, schedule=1.0),
        lambda: AdversarialAlignment(0.5, schedule=1.0, objective="non_saturating"),
        lambda: CosineAlignment(0.5, schedule=1.0),
    ],
    ids=["reversal", "non_saturating", "cosine"],
)
def test_it_scales_what_the_model_gets_and_leaves_the_loss_and_the_discriminator(make):
    alignment, grads = make(), sampled()
    loss, at_grads, at_weights = value_and_gradients(alignment, grads)
    alignment.damping.assign(0.25)
    damped, damped_at_grads, damped_at_weights = value_and_gradients(alignment, grads)
    assert float(damped) == float(loss)
    for task, g in at_grads.items():
        assert np.abs(g).max() > 0
        np.testing.assert_allclose(damped_at_grads[task], 0.25 * g, rtol=1e-12, atol=0)
    for after, before in zip(damped_at_weights, at_weights, strict=True):
        np.testing.assert_array_equal(after, before)
    assert float(alignment.strength) == 0.125 and float(alignment.scheduled_strength) == 0.5


def test_a_function_traced_before_follows_it():
    alignment, grads = CosineAlignment(0.5, schedule=1.0), sampled()
    alignment(grads)
    function = tf.function(lambda: value_and_gradients(alignment, grads)[1]["a"], autograph=False)
    before = function()
    alignment.damping.assign(0.0)
    assert np.abs(before).max() > 0 and not np.any(function())
    assert function.experimental_get_tracing_count() == 1


def test_a_check_at_a_strength_of_its_own_does_not_see_it():
    alignment = CosineAlignment(0.5, schedule=1.0)
    alignment.damping.assign(0.0)
    with alignment.fixed_strength(1.0):
        assert float(alignment.strength) == 1.0


def test_a_schedule_that_starts_again_is_not_damped():
    alignment = CosineAlignment(0.5, schedule=1.0)
    alignment.damping.assign(0.5)
    alignment.reset_schedule()
    assert float(alignment.damping.value) == 1.0


def test_it_is_saved_with_the_model(tmp_path):
    model = aligned(functional())
    model.alignment.damping.assign(0.375)
    model.save(tmp_path / "model.keras")
    assert float(keras.models.load_model(tmp_path / "model.keras").alignment.strength) == 0.5 * 0.375
