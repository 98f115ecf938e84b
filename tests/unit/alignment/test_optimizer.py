"""The discriminator's optimizer: the model's kind, ten times its rate."""

from __future__ import annotations

import keras
import pytest

from gradalign.alignment.optimizer import ScaledSchedule, discriminator_optimizer_like


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), {"momentum": 0.9, "nesterov": True}),
        (keras.optimizers.Adam(0.01, beta_1=0.5, clipnorm=1.0), {"beta_1": 0.5, "clipnorm": 1.0}),
        (keras.optimizers.AdamW(0.01, weight_decay=0.1), {"weight_decay": 0.1}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_kind_and_settings_with_ten_times_the_rate(optimizer, settings):
    made = discriminator_optimizer_like(optimizer)
    assert type(made) is type(optimizer) and made is not optimizer
    assert float(made.learning_rate) == pytest.approx(0.1)
    assert {name: getattr(made, name) for name in settings} == settings


def test_a_schedule_of_the_rate_is_scaled():
    """0.4 · 0.5^step, times ten."""
    decay = keras.optimizers.schedules.ExponentialDecay(0.4, 1, 0.5)
    made = discriminator_optimizer_like(keras.optimizers.SGD(decay))
    rates = []
    weight = keras.Variable(0.0)
    for _ in range(3):
        rates.append(float(made.learning_rate))
        made.apply([keras.ops.ones(())], [weight])
    assert rates == pytest.approx([4.0, 2.0, 1.0])
    assert float(weight) == pytest.approx(-7.0)


def test_the_scaled_schedule_survives_serialisation():
    schedule = ScaledSchedule(keras.optimizers.schedules.ExponentialDecay(0.4, 1, 0.5), 3.0)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert float(again(1)) == pytest.approx(0.6)


def test_a_loss_scale_is_taken_off():
    made = discriminator_optimizer_like(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))
    assert type(made) is keras.optimizers.Adam
    assert float(made.learning_rate) == pytest.approx(0.1)
