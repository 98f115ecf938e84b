"""The logit of a product of probabilities against high-precision values, at first and second order."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.layers import ChainedLogit
from tests.unit.run_modes import MODES, in_mode

LOGITS = (-30.0, -12.0, 0.0, 12.0, 30.0)
PAIRS = [*itertools.product(LOGITS, LOGITS), (-300.0, 2.0), (300.0, 2.0), (60.0, 60.0), (-60.0, -60.0)]


def exact(a: float, b: float) -> list[float]:
    """Value, d/da, d/db, d²/da², d²/dadb, d²/db² of logit(σ(a) σ(b))."""
    with localcontext() as context:
        context.prec = 300  # 1 - σ(300) is 1e-130
        x, y = (-Decimal(a)).exp(), (-Decimal(b)).exp()
        p = 1 / ((1 + x) * (1 + y))
        # dp/da = p (1 - σ(a)), and d logit(p) = dp / (p (1 - p)).
        u, v, q = x / (1 + x), y / (1 + y), 1 - p
        by_a, by_b = u / q, v / q
        twice = [-u * (1 - u) / q + u * u * p / q**2, u * v * p / q**2, -v * (1 - v) / q + v * v * p / q**2]
        return [float(number) for number in ((p / q).ln(), by_a, by_b, *twice)]


def found(dtype, mode):
    a, b = (tf.constant(side, dtype) for side in zip(*PAIRS, strict=True))
    layer = ChainedLogit()

    def run(a, b):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch([a, b])
            with tf.GradientTape() as inner:
                inner.watch([a, b])
                value = layer([a, b])
            by_a, by_b = inner.gradient(value, [a, b])
        return value, by_a, by_b, *outer.gradient(by_a, [a, b]), outer.gradient(by_b, b)

    return [order.numpy() for order in in_mode(run, mode)(a, b)]


@pytest.mark.parametrize(("dtype", "mode"), [("float64", "eager"), *(("float32", mode) for mode in MODES)])
def test_value_and_both_orders_at_every_pair(dtype, mode):
    wanted = np.array([exact(a, b) for a, b in PAIRS]).T
    relative, absolute = (1e-12, 1e-15) if dtype == "float64" else (2e-6, 5e-7)
    # Rounding of the logit itself where it passes 0, and of differences of weights in [0, 1].
    for order, expected in zip(found(dtype, mode), wanted, strict=True):
        np.testing.assert_allclose(order, expected, rtol=relative, atol=absolute)


def test_three_factors_and_broadcasting():
    """By hand: p = 1/2 · 1/3 · 1/4, and its gradient by each logit is (1 - factor) / (1 - p)."""
    factors = np.array([1 / 2, 1 / 3, 1 / 4])
    logits = [tf.constant([[np.log(f / (1 - f))]]) for f in factors]
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = ChainedLogit()(logits)
    np.testing.assert_allclose(value, [[np.log((1 / 24) / (23 / 24))]], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(tape.gradient(value, logits)), (1 - factors) / (23 / 24), rtol=1e-6)
    wide = ChainedLogit()([tf.zeros([3, 1]), tf.zeros([3, 2])])
    np.testing.assert_allclose(wide, np.full((3, 2), -np.log(3.0)), rtol=1e-6)
    assert ChainedLogit()([keras.KerasTensor((None, 1)), keras.KerasTensor((None, 1))]).shape == (None, 1)


def test_a_rare_positive_gets_its_gradient_where_the_product_of_probabilities_gives_none():
    """By hand: d -log(σ(a) σ(b)) / da = σ(a) - 1, which is -1 at a = -12 to six digits."""
    logits = [tf.constant([[-12.0]]), tf.constant([[-12.0]])]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        chained = loss(tf.ones([1, 1]), ChainedLogit()(logits))
        behind_sigmoid = keras.losses.BinaryCrossentropy()(
            tf.ones([1, 1]), keras.layers.Activation("sigmoid")(ChainedLogit()(logits))
        )
        product = keras.ops.sigmoid(logits[0]) * keras.ops.sigmoid(logits[1])
        naive = keras.losses.BinaryCrossentropy()(tf.ones([1, 1]), product)
    for found in (chained, behind_sigmoid):
        np.testing.assert_allclose(np.ravel(tape.gradient(found, logits)), [-0.9999939, -0.9999939], rtol=1e-6)
    assert np.ravel(tape.gradient(naive, logits)).tolist() == [0.0, 0.0]


def test_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    x = keras.Input((3,), name="x")
    click, conversion = keras.layers.Dense(1)(x), keras.layers.Dense(1, dtype="float32")(x)
    model = keras.Model(x, ChainedLogit()([click, conversion]))
    assert model(tf.ones([2, 3])).dtype == tf.float32


def test_saving(tmp_path):
    x = keras.Input((3,), name="x")
    logits = [keras.layers.Dense(1)(x) for _ in range(2)]
    model = keras.Model(x, ChainedLogit(name="buy")(logits))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(tf.ones([2, 3])), model(tf.ones([2, 3])))


def test_what_is_refused():
    with pytest.raises(ga.UserError, match="takes a list of two or more logits; received 1"):
        ChainedLogit()([tf.zeros([2, 1])])
    with pytest.raises(ga.UserError, match="takes a list of two or more logits; received 1"):
        ChainedLogit()(tf.zeros([2, 1]))
