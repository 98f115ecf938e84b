"""Gradient reversal by hand: orders 1 to 3 of f(R_a(x)) are (-a)^n f^(n)(x)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients import GradientReversal, reverse_gradient
from tests.unit.run_modes import MODES, in_mode


def three_orders(f, x):
    with tf.GradientTape() as third:
        third.watch(x)
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                value = f(x)
            one = first.gradient(value, x)
        two = second.gradient(one, x)
    return value, one, two, third.gradient(two, x)


WAYS = {
    "function": lambda a: lambda x: reverse_gradient(x, a),
    "function by keyword": lambda a: lambda x: reverse_gradient(x=x, strength=a),
    "tensor strength": lambda a: lambda x: reverse_gradient(x, tf.constant(a, tf.float64)),
    "layer": lambda a: GradientReversal(a, dtype="float64"),
    "layer by keyword": lambda a: (lambda layer: lambda x: layer(x=x))(GradientReversal(a, dtype="float64")),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_orders_one_to_three(way, mode):
    """f = x^4 at 2: 32, 48, 48; times -0.5, 0.25, -0.125."""
    reverse = WAYS[way](0.5)
    run = in_mode(lambda: three_orders(lambda x: reverse(x) ** 4, tf.constant([2.0], tf.float64)), mode)
    value, *orders = (v.numpy().tolist() for v in run())
    assert value == [16.0]
    assert orders == [[-16.0], [12.0], [-6.0]]


def test_between_two_functions():
    """f(R(g(x))), g = x^2, f = u^3, a = 2: first derivative -2 · 3x^4 · 2x = -12 x^5.

    The second derives that product, and its path through u = g(x) is turned again: u^2 contributes
    (-2)(-2) · 3 · 2u · 2x · 2x = 96 x^4, the factor 2x of g contributes -2 · 3x^4 · 2 = -12 x^4; together 84 x^4.
    """
    _, one, two, _ = three_orders(lambda x: reverse_gradient(x**2, 2.0) ** 3, tf.constant(1.5, tf.float64))
    assert float(one) == pytest.approx(-12 * 1.5**5)
    assert float(two) == pytest.approx(84 * 1.5**4)


def test_strength_zero_stops_the_gradient():
    _, one, two, _ = three_orders(lambda x: reverse_gradient(x, 0.0) ** 4, tf.constant(2.0))
    assert float(one) == 0.0 and float(two) == 0.0


def test_the_strength_gets_no_gradient():
    strength = tf.Variable(0.5)
    with tf.GradientTape() as tape:
        y = reverse_gradient(tf.constant(3.0), strength) ** 2
    assert tape.gradient(y, strength) is None


def test_a_change_of_strength_reaches_a_traced_function_without_a_new_trace():
    layer = GradientReversal(1.0)
    traces = []

    @tf.function
    def slope(x):
        traces.append(1)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x) ** 2
        return tape.gradient(y, x)

    found = []
    for strength in (1.0, 0.25, np.float32(0.5), 0):
        layer.strength = strength
        found.append(float(slope(tf.constant(3.0))))
    assert found == [-6.0, -1.5, -3.0, 0.0]
    assert len(traces) == 1


def reversed_dense(strength=0.5):
    x = keras.Input((2,), name="x")
    y = GradientReversal(strength, name="reversal")(x)
    y = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(y)
    return keras.Model(x, y)


def slopes(model):
    x = tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    return tape.gradient(y, [x, *model.trainable_variables])


def test_in_a_functional_model():
    at_x, at_kernel = slopes(reversed_dense())
    assert at_x.numpy().tolist() == [[-0.5, -0.5]]
    assert at_kernel.numpy().tolist() == [[1.0], [2.0]]
    assert len(reversed_dense().trainable_variables) == 1


def test_the_strength_is_saved_and_restored(tmp_path):
    model = reversed_dense()
    model.get_layer("reversal").strength = 0.125
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert float(loaded.get_layer("reversal").strength) == 0.125
    assert slopes(loaded)[0].numpy().tolist() == [[-0.125, -0.125]]
    model.save_weights(tmp_path / "model.weights.h5")
    other = reversed_dense(strength=1.0)
    other.load_weights(tmp_path / "model.weights.h5")
    assert float(other.get_layer("reversal").strength) == 0.125


def test_config_round_trip():
    layer = GradientReversal(0.5, name="turn")
    again = GradientReversal.from_config(layer.get_config())
    assert again.name == "turn" and float(again.strength) == 0.5
    assert again.get_config() == layer.get_config()


def test_sparse_upstream_gradients():
    """sum of (rows of x picked by ids)^3: 3x^2 per pick, turned with 0.5."""
    x = tf.constant([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.gather(reverse_gradient(x, 0.5), [0, 2, 2]) ** 3)
        first = tape.gradient(y, x)
        assert isinstance(first, tf.IndexedSlices)
        pulled = tf.reduce_sum(first.values)
    assert tf.convert_to_tensor(first).numpy().tolist() == [[-1.5], [0.0], [-27.0]]
    # Twice through the reversal: 0.25 · 6x per pick.
    assert tf.convert_to_tensor(outer.gradient(pulled, x)).numpy().tolist() == [[1.5], [0.0], [9.0]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_keeps_the_dtype(dtype):
    x = tf.constant([2.0], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = GradientReversal(0.5, dtype=dtype)(x)
    gradient = tape.gradient(y, x)
    assert y.dtype == gradient.dtype == dtype
    assert float(gradient[0]) == -0.5


def test_mixed_precision_keeps_the_strength_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    layer = GradientReversal(0.1)
    assert layer.strength.dtype == "float32"
    assert layer(tf.constant([1.0])).dtype == tf.float16


def test_hands_masks_on():
    embedded = keras.layers.Embedding(3, 1, mask_zero=True, weights=[np.array([[6.0], [2.0], [4.0]])])
    pooled = keras.layers.GlobalAveragePooling1D()(GradientReversal(1.0)(embedded(tf.constant([[1, 2, 0]]))))
    assert pooled.numpy().tolist() == [[3.0]]


@pytest.mark.parametrize("strength", [-0.5, float("nan"), float("inf"), "strong", None])
def test_bad_strengths_are_quoted(strength):
    for use in (GradientReversal, lambda a: reverse_gradient(tf.constant([1.0]), a)):
        with pytest.raises(UserError, match=f"finite number, 0 or more; received {strength!r}"):
            use(strength)
    layer = GradientReversal(0.5)
    with pytest.raises(UserError, match=f"received {strength!r}"):
        layer.strength = strength
    assert float(layer.strength) == 0.5


def test_integers_are_refused():
    with pytest.raises(UserError, match="received int32"):
        reverse_gradient(tf.constant([1]), 1.0)
