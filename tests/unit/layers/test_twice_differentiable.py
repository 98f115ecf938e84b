"""The swap of layers that are wrong at second order: kinds of models, shared weights, and what cannot be reached."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.gradients import layer_paths

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

L = keras.layers
STEPS, WIDTH = 5, 4


def kinds(model):
    """`{path: whose layer}` of the layers that have a twin."""
    names = ("LayerNormalization", "BatchNormalization", "GroupNormalization", "LSTM", "GRU")
    return {
        path: type(layer).__module__.split(".")[0]
        for path, layer in layer_paths(model).items()
        if type(layer).__name__ in names
    }


def state(variables):
    return [id(variable) for variable in variables]


def functional():
    """Nested models, one of them used twice; a wrapper; plain operations; masks; a frozen layer; dict in, dict out."""
    x, ids = keras.Input((STEPS, WIDTH), name="x"), keras.Input((3,), dtype="int32", name="ids")
    inner = keras.Sequential([keras.Input((STEPS, WIDTH)), L.Dense(4), L.BatchNormalization(name="bn")], name="inner")
    twice_in = keras.Input((STEPS, WIDTH))
    twice = keras.Model(twice_in, L.LayerNormalization(name="ln")(L.Dense(4, "gelu")(twice_in)), name="twice")
    h = twice(twice(inner(x)))
    h = L.LSTM(5, dropout=0.2, return_sequences=True, name="lstm")(h)
    h = L.Bidirectional(L.GRU(3), name="both")(h)
    pooled = L.GlobalAveragePooling1D()(L.Embedding(7, 4, mask_zero=True)(ids))
    h = L.GroupNormalization(2, name="gn")(keras.ops.concatenate([h, pooled], -1))
    model = keras.Model({"x": x, "ids": ids}, {"b": L.Dense(1, name="b")(h), "a": L.Dense(1, name="a")(h)}, name="m")
    model.get_layer("gn").trainable = False
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(6, STEPS, WIDTH)).astype("float32"), "ids": rng.integers(0, 7, (6, 3))}
    return model, inputs


def test_a_functional_model_is_a_new_one_on_the_same_variables(tmp_path):
    model, inputs = functional()
    before = {path: id(layer) for path, layer in layer_paths(model).items() if not path.startswith("both")}
    expected = model(inputs)
    new = ga.make_twice_differentiable(model)
    assert new is not model and new.name == "m" and list(new.output) == ["b", "a"]
    twins = {"inner/bn", "twice/ln", "lstm", "both/forward_gru", "both/backward_gru", "gn"}
    assert kinds(new) == dict.fromkeys(twins, "gradalign")
    # The old one is as it was, except inside of the wrapper, which both hold.
    assert {p: i for p, i in before.items() if id(layer_paths(model)[p]) != i} == {}
    assert state(new.weights) == state(model.weights)
    assert state(new.trainable_variables) == state(model.trainable_variables)
    for task in ("a", "b"):
        np.testing.assert_allclose(new(inputs)[task], expected[task], rtol=1e-5, atol=1e-6)
    assert new.get_layer("lstm").cell.seed_generator is model.get_layer("lstm").cell.seed_generator
    # A frozen layer is frozen, and thaws.
    frozen = new.get_layer("gn")
    assert not frozen.trainable_variables
    frozen.trainable = True
    assert len(frozen.trainable_variables) == 2
    frozen.trainable = False
    # Saved, the LSTM still has no cuDNN, which Keras' own forgets.
    new.save(tmp_path / "new.keras")
    loaded = keras.models.load_model(tmp_path / "new.keras")
    assert loaded.get_layer("lstm").use_cudnn is False and kinds(loaded) == kinds(new)
    np.testing.assert_allclose(loaded(inputs)["a"], expected["a"], rtol=1e-5, atol=1e-6)
    # Training the new one moves the old one.
    new.compile("sgd", {"a": "mse", "b": "mse"}, run_eagerly=True)
    new.train_on_batch(inputs, {"a": np.ones(6), "b": np.ones(6)})
    np.testing.assert_allclose(new(inputs)["a"], model(inputs)["a"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(new(inputs)["a"], expected["a"])
    assert ga.make_twice_differentiable(new) is new, "nothing is left to swap"


class Block(L.Layer):
    def __init__(self, norm):
        super().__init__()
        self.dense, self._norm = L.Dense(4), norm

    def call(self, x):
        return self._norm(self.dense(x))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        norm = L.LayerNormalization(name="used_twice")
        self.blocks = [Block(norm), Block(norm), L.LayerNormalization(name="in_list")]
        self.heads = {"a": (L.Dense(4), [L.BatchNormalization(name="deep")])}
        self.inner = keras.Sequential([L.Dense(4), L.GroupNormalization(2, name="in_sequential")])
        self.head = L.Dense(3)
        self.drop = L.Dropout(0.1)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        dense, [norm] = self.heads["a"]
        x = norm(dense(self.inner(x)), training=training)
        return self.head(self.drop(x, training=training))


def test_a_subclassed_model_is_changed_in_place(tmp_path):
    model = Subclassed()
    x, y = np.random.default_rng(0).normal(size=(6, STEPS, WIDTH)).astype("float32"), np.ones((6, STEPS, 3))
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(x, y)
    expected, paths = model(x), list(layer_paths(model))
    before = state(model.weights), state(model.optimizer.variables)
    assert ga.make_twice_differentiable(model) is model
    assert set(kinds(model).values()) == {"gradalign"} and len(kinds(model)) == 4
    assert list(layer_paths(model)) == paths
    assert model.blocks[0]._norm is model.blocks[1]._norm
    assert (state(model.weights), state(model.optimizer.variables)) == before
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)
    mean = model.heads["a"][1][0].moving_mean.numpy()
    model.train_on_batch(x, y)  # Traced anew, with the new layers.
    assert not np.allclose(model.heads["a"][1][0].moving_mean, mean)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = Subclassed()
    fresh(x)
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(fresh(x), model(x), rtol=1e-5, atol=1e-6)


class OwnNormalization(L.LayerNormalization):
    pass


class OwnFunctional(keras.Model):
    def __init__(self):
        x = keras.Input((4,))
        super().__init__(x, OwnNormalization(name="own")(L.LayerNormalization(name="stock")(L.Dense(4)(x))))


def test_what_cannot_be_reached_is_named():
    model = OwnFunctional()
    with pytest.warns(ga.GradAlignWarning) as warned:
        assert ga.make_twice_differentiable(model) is model
    [warning] = warned
    assert 'cannot swap "stock" (LayerNormalization), "own" (OwnNormalization)' in str(warning.message)


def test_wrong_uses_are_one_sentence():
    with pytest.raises(ga.UserError, match="takes a Keras model; received Dense"):
        ga.make_twice_differentiable(L.Dense(2))
    with pytest.raises(ga.UserError, match=r'Model "late" has no weights to share yet'):
        ga.make_twice_differentiable(keras.Sequential([L.LayerNormalization()], name="late"))
    x = keras.Input((2,))
    wrapped = ga.MultiTaskModel(keras.Model(x, {"a": L.Dense(1)(x)}))
    with pytest.raises(ga.UserError, match=r"MultiTaskModel\(make_twice_differentiable\(model.base\), model.shared"):
        ga.make_twice_differentiable(wrapped)


def test_the_swap_is_right_at_second_order():
    """Against central differences, where the stock layer is wrong by percents."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    stock = keras.Sequential([keras.Input((4,)), L.Dense(6, "tanh"), L.LayerNormalization(), L.Dense(1)])
    rng = np.random.default_rng(0)
    x, direction = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))

    def function(model, point):
        point = tf.constant(point)
        with tf.GradientTape() as tape:
            tape.watch(point)
            _, gradients = ga.task_gradients(lambda s: {"t": tf.sin(model(s))}, point)
            value = tf.reduce_sum(gradients["t"] ** 2)
        return float(value), tape.gradient(value, point).numpy()

    def deviation(model):
        step = 1e-5
        forth, back = (function(model, x + sign * step * direction)[0] for sign in (1, -1))
        along = (function(model, x)[1] * direction).sum()
        return abs((forth - back) / (2 * step) - along) / abs(along)

    assert deviation(stock) > 1e-2
    assert deviation(ga.make_twice_differentiable(stock)) < 1e-6
