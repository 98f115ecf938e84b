"""Layers on the path that are wrong at second order: each kind is found by name, and what is right is left in peace."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.diagnostics import norms_at_shared
from gradalign.diagnostics.path_layers import layers_without_second_order, path_sentences
from tests.unit.small_models import discriminator

L = keras.layers
STEPS, WIDTH = 6, 4


def on_the_path(*layers):
    """`[(path, class)]` found with `layers` between the shared tensor and the one task's prediction."""
    x = keras.Input((STEPS, WIDTH), name="x")
    h = L.Dense(WIDTH, name="encoder")(L.LayerNormalization(name="below")(x))
    for layer in layers:
        h = layer(h)
    base = keras.Model(x, {"click": L.Dense(1, name="click")(L.Flatten()(h))})
    found = layers_without_second_order(base, "encoder", tf.TensorSpec((None, STEPS, WIDTH)))
    return [(layer.path, layer.class_name) for layer in found]


class NormalizedCell(L.Layer):
    """A cell of a recurrent layer with a stock normalisation inside: its stop-gradient is in a loop's body."""

    state_size = 3

    def __init__(self):
        super().__init__(name="cell")
        self.dense, self.norm = L.Dense(3), L.LayerNormalization(name="inner_norm")

    def build(self, shape):
        self.dense.build((shape[0], shape[-1] + 3))
        self.norm.build((shape[0], 3))

    def call(self, x, states):
        h = self.norm(self.dense(tf.concat([x, states[0]], -1)))
        return h, [h]


def frozen(layer):
    layer.trainable = False
    return layer


def test_layers_of_keras_are_found_by_path_and_class():
    """Each of these in one chain; what is around them is not named."""
    found = on_the_path(
        L.LayerNormalization(name="layer"),
        L.Dense(WIDTH, "gelu"),
        L.BatchNormalization(name="batch"),
        L.GroupNormalization(2, name="group"),
        L.Reshape((2, 3, WIDTH)),
        L.BatchNormalization(name="rank_4"),
        L.Reshape((STEPS, WIDTH)),
        L.TimeDistributed(L.LayerNormalization(name="in"), name="wrapper"),
        keras.Sequential([keras.Input((STEPS, WIDTH)), L.LayerNormalization(name="in")], name="nested"),
    )
    assert sorted(found) == [
        ("batch", "BatchNormalization"),
        ("group", "GroupNormalization"),
        ("layer", "LayerNormalization"),
        ("nested/in", "LayerNormalization"),
        ("rank_4", "BatchNormalization"),
        ("wrapper/in", "LayerNormalization"),
    ]


def test_stop_gradients_of_the_users_own_are_found():
    found = on_the_path(
        L.Lambda(lambda t: t * tf.stop_gradient(tf.sigmoid(t)), name="gate"),
        lambda h: h + keras.ops.stop_gradient(keras.ops.tanh(h)),
        L.Lambda(lambda t: t / tf.stop_gradient(tf.reduce_max(t, -1, keepdims=True)), name="scale"),
    )
    assert sorted(found) == [("gate", "Lambda"), ("scale", "Lambda"), ("stop_gradient", "StopGradient")]


def test_recurrent_layers_that_may_take_cudnn_are_found():
    found = on_the_path(
        L.LSTM(3, return_sequences=True, name="lstm"),
        L.GRU(3, return_sequences=True, name="gru"),
        L.Bidirectional(L.GRU(3, name="own"), name="both"),
    )
    assert sorted(found) == [
        ("both/backward_own", "GRU"),
        ("both/forward_own", "GRU"),
        ("gru", "GRU"),
        ("lstm", "LSTM"),
    ]


def test_a_normalisation_within_a_loop_is_found():
    assert on_the_path(L.RNN(NormalizedCell(), name="a")) == [("a/cell/inner_norm", "LayerNormalization")]


def fused(x):
    y, _, _ = tf.compat.v1.nn.fused_batch_norm(x, tf.ones(4), tf.zeros(4))
    return y


def test_what_is_right_is_left_in_peace():
    """All of these at once, since none may be named."""
    right = [
        L.Dense(WIDTH, "gelu"),
        L.Dropout(0.3),
        L.GaussianNoise(0.1),
        ga.layers.LayerNormalization(),
        ga.layers.BatchNormalization(),
        ga.layers.GroupNormalization(2),
        L.RMSNormalization(),
        L.UnitNormalization(),
        frozen(L.BatchNormalization()),
        L.SpectralNormalization(L.Dense(WIDTH)),
        L.Lambda(lambda t: t - tf.reduce_logsumexp(t, -1, keepdims=True)),
        L.Lambda(lambda t: tf.exp(t - tf.stop_gradient(tf.reduce_max(t, -1, keepdims=True)))),
        lambda h: L.MultiHeadAttention(2, 3)(h, h),
        L.Reshape((2, 3, 4)),
        L.Lambda(fused),
        L.Reshape((STEPS, WIDTH)),
        L.LSTM(WIDTH, use_cudnn=False, return_sequences=True),
        L.LSTM(WIDTH, activation="relu", return_sequences=True),
        L.GRU(WIDTH, reset_after=False, return_sequences=True),
        ga.layers.LSTM(WIDTH, return_sequences=True),
        L.Bidirectional(ga.layers.GRU(2, return_sequences=True)),
        L.SimpleRNN(3),
    ]
    assert on_the_path(*right) == []


def two_towers(normalize, **settings):
    """Stock normalisation in the towers of the tasks that `normalize` names."""
    x = keras.Input((WIDTH,), name="x")
    s = L.Dense(5, "tanh", name="encoder")(x)
    outputs = {}
    for task in ("click", "buy", "like"):
        h = L.Dense(6, "gelu")(s)
        if task in normalize:
            h = L.LayerNormalization(name=f"norm_{task}")(h)
        outputs[task] = L.Dense(1, "sigmoid", name=task)(h)
    own = discriminator(tasks=len(settings.get("tasks", outputs)))
    model = ga.MultiTaskModel(
        keras.Model({"x": x}, outputs), "encoder", ga.AdversarialAlignment(discriminator=own, **settings)
    )
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    rng = np.random.default_rng(0)
    return model, (
        {"x": rng.normal(size=(16, WIDTH)).astype("float32")},
        {task: rng.integers(0, 2, 16).astype("float32") for task in outputs},
    )


def test_fit_warns_once_with_layer_class_and_mend():
    model, (x, y) = two_towers({"click", "buy"})
    state = [variable.numpy() for variable in model.base.variables]
    with pytest.warns(ga.GradAlignWarning) as warned:
        model.fit(x, y, verbose=0)
    assert len(warned) == 1
    model.fit(x, y, verbose=0)  # A second warning would be an error.
    text = str(warned[0].message)
    assert 'each of the layers "norm_buy" (LayerNormalization), "norm_click" (LayerNormalization) counts its' in text
    assert "gradalign.layers.LayerNormalization" in text and "ga.make_twice_differentiable(base)" in text
    assert any((a != b.numpy()).any() for a, b in zip(state, model.base.variables, strict=True)), (
        "it trains all the same"
    )


def test_only_the_aligned_tasks_count():
    model, batch = two_towers({"like"}, tasks=["click", "buy"])
    assert norms_at_shared(model, batch).path_layers == []


def test_the_report_says_it_and_the_swap_mends_it():
    model, batch = two_towers({"click"})
    report = norms_at_shared(model, batch)
    assert not report.ok and 'layer "norm_click" (LayerNormalization)' in str(report)
    alignment = ga.AdversarialAlignment(discriminator=discriminator(tasks=3))
    mended = ga.MultiTaskModel(ga.make_twice_differentiable(model.base), model.shared, alignment)
    mended.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    report = ga.check_second_order(mended, batch)
    assert report.ok and report.agrees, str(report)


class OwnCall(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.encoder = L.Dense(4, name="encoder")
        self.head = L.Dense(1)

    def call(self, x):
        s = self.encoder(x)
        return {"click": self.head(s * tf.stop_gradient(tf.sigmoid(s)))}


def test_a_stop_gradient_of_the_base_itself_names_the_base():
    base = OwnCall()
    base(tf.ones([2, 3]))
    weights = [w.numpy() for w in base.weights]
    found = layers_without_second_order(base, "encoder", tf.TensorSpec((None, 3)))
    assert [(layer.path, layer.class_name) for layer in found] == [("own", "OwnCall")]
    assert "call" not in vars(base.encoder), "the layers are as they were"
    np.testing.assert_equal([w.numpy() for w in base.weights], weights)
    [sentence] = path_sentences(found)
    assert 'layer "own" (OwnCall) stops gradients' in sentence and "take the stop-gradient out" in sentence


@pytest.mark.parametrize(
    ("layer", "compiled", "sentence"),
    [
        (
            L.SimpleRNN(2, name="steps"),
            True,
            'layer "steps" (SimpleRNN) is a loop, whose second derivative XLA compiles',
        ),
        (L.Bidirectional(ga.layers.LSTM(2), name="steps"), True, "jit_compile=False, or the layer unroll=True"),
        (ga.layers.GRU(2, name="steps"), False, None),
        (ga.layers.GRU(2, unroll=True, name="steps"), True, None),
    ],
)
def test_loops_that_xla_compiles_in_every_step_are_named(layer, compiled, sentence):
    x = keras.Input((STEPS, WIDTH))
    base = keras.Model(x, {"a": L.Dense(1)(layer(L.Dense(WIDTH, name="encoder")(x)))})
    found = layers_without_second_order(base, "encoder", tf.TensorSpec((None, STEPS, WIDTH)), compiled=compiled)
    assert not any(layer.raises for layer in found)
    assert [sentence in said for said in path_sentences(found)] == ([] if sentence is None else [True])


@pytest.mark.parametrize(
    ("layer", "jit_compile", "sentence"),
    [
        (L.Dense(4, "softsign", name="soft"), False, 'layer "soft" (Dense) has no second derivative in TensorFlow'),
        (L.MaxPooling1D(2, name="pool"), True, 'layer "pool" (MaxPooling1D) has no second derivative that XLA can'),
        (L.MaxPooling1D(2, name="pool"), False, None),
    ],
)
def test_what_cannot_be_computed_is_one_sentence(layer, jit_compile, sentence):
    x = keras.Input((STEPS, WIDTH), name="x")
    h = L.Flatten()(layer(L.Dense(WIDTH, name="encoder")(x)))
    base = keras.Model({"x": x}, {task: L.Dense(1, "sigmoid", name=task)(L.Dense(3, "tanh")(h)) for task in "ab"})
    alignment = ga.AdversarialAlignment(normalize="batch", discriminator=discriminator(STEPS * WIDTH))
    model = ga.MultiTaskModel(base, "encoder", alignment)
    model.compile("sgd", loss="binary_crossentropy", jit_compile=jit_compile)
    x, y = {"x": np.ones((4, STEPS, WIDTH), "float32")}, {task: np.array([0.0, 1.0, 1.0, 0.0]) for task in "ab"}
    if sentence is None:
        assert norms_at_shared(model, (x, y)).path_layers == []
    else:
        for call in (lambda: model.fit(x, y, verbose=0), lambda: ga.check_second_order(model, (x, y))):
            with pytest.raises(ga.UserError) as raised:
                call()
            assert sentence in str(raised.value)
