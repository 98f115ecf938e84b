import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.layers import tower


def apply(layers, x, training=False):
    for layer in layers:
        x = layer(x, training=training) if isinstance(layer, keras.layers.Dropout) else layer(x)
    return x


def test_names_widths_and_output():
    layers = tower((5, 3), name="tower_buy", output_name="buy", dropout=0.5)
    assert [layer.name for layer in layers] == [
        "tower_buy_0",
        "tower_buy_0_dropout",
        "tower_buy_1",
        "tower_buy_1_dropout",
        "buy",
    ]
    probability = apply(layers, np.random.default_rng(0).normal(size=(4, 7)))
    assert probability.shape == (4, 1)
    assert np.all((probability > 0) & (probability < 1))


def test_no_hidden_layer_is_logistic_regression():
    [layer] = tower((), name="t")
    assert layer.name == "t_output"
    layer.build((None, 2))
    layer.set_weights([np.array([[1.0], [-2.0]]), np.array([0.5])])
    np.testing.assert_allclose(layer(np.array([[3.0, 1.0]])), [[1 / (1 + np.exp(-1.5))]], rtol=1e-6)


def test_a_logit_is_the_probability_before_the_sigmoid():
    logit, probability = tower((3,), output_activation=None), tower((3,))
    x = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    apply(logit, x), apply(probability, x)
    for a, b in zip(logit, probability, strict=True):
        b.set_weights(a.get_weights())
    np.testing.assert_allclose(apply(probability, x), tf.sigmoid(apply(logit, x)), rtol=1e-6)


def second_derivative_norm(activation):
    """Of the direction of dz/dx by x: what the alignment needs to reach the shared representation."""
    layers = tower((8, 8), activation, output_activation=None)
    x = tf.constant(np.random.default_rng(0).normal(size=(6, 4)), tf.float32)
    apply(layers, x)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            z = tf.reduce_sum(apply(layers, x))
        g = inner.gradient(z, x)
        direction = g / tf.sqrt(tf.reduce_sum(g**2, axis=1, keepdims=True))
        probe = tf.reduce_sum(direction[:, 0])
    second = outer.gradient(probe, x)
    return 0.0 if second is None else float(tf.norm(second))


def test_the_default_tower_has_a_second_derivative_and_relu_has_none():
    assert second_derivative_norm("gelu") > 1e-3
    assert tower((4,))[0].activation is keras.activations.gelu
    assert second_derivative_norm("relu") == 0.0


def test_mixed_precision_ends_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    layers = tower((3,))
    assert [layer.compute_dtype for layer in layers] == ["float16", "float32"]


def test_float64_throughout():
    keras.config.set_floatx("float64")
    assert apply(tower((3,)), np.zeros((2, 2))).dtype == "float64"


@pytest.mark.parametrize("units", [(64, 0), (1.5,), "64", 64, (True,), None])
def test_bad_widths_are_quoted(units):
    with pytest.raises(ValueError, match=r"widths of a tower .* received"):
        tower(units)


@pytest.mark.parametrize("dropout", [1, -0.1, "0.1", True, None])
def test_a_bad_dropout_is_quoted(dropout):
    with pytest.raises(ValueError, match=r"`dropout` must be a number in \[0, 1\), received"):
        tower((4,), dropout=dropout)
