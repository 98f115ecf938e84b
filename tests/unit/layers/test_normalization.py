"""Normalisation layers: numbers, weights and files of Keras' own; the second order, which differs, is tested beside."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign import UserError
from gradalign.layers import GRU, LSTM, BatchNormalization, GroupNormalization, LayerNormalization
from tests.unit.run_modes import in_mode

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

L = keras.layers
MASK = np.array([[True, False, True], [True, True, True], [False, True, True], [False, False, True]])
CASES = [
    (LayerNormalization, {}, (4, 5), {}),
    (LayerNormalization, {"axis": [1, 2]}, (4, 3, 5), {}),
    (LayerNormalization, {"axis": 1, "center": False}, (4, 3, 5), {}),
    (LayerNormalization, {"axis": -1, "scale": False, "epsilon": 0.1}, (4, 3, 5), {}),
    (GroupNormalization, {"groups": 2}, (4, 6), {}),
    (GroupNormalization, {"groups": 2, "axis": 1}, (4, 6, 3, 2), {}),
    (GroupNormalization, {"groups": -1, "center": False}, (4, 3, 6), {}),
    (BatchNormalization, {}, (4, 5), {"training": True}),
    (BatchNormalization, {"axis": 1, "momentum": 0.5}, (4, 5, 3, 2), {"training": True}),
    (BatchNormalization, {"synchronized": True, "scale": False}, (4, 3, 5), {"training": True}),
    (BatchNormalization, {"trainable": False}, (4, 5), {"training": True}),
    (BatchNormalization, {"epsilon": 0.1}, (4, 3, 5), {"training": False}),
    (BatchNormalization, {}, (4, 3, 5), {"training": True, "mask": MASK}),
]


def stock(layer):
    return getattr(L, type(layer).__name__)


def pair(kind, config, shape, policy):
    """A layer of ours and its stock one, with equal weights that are no zeros or ones."""
    ours = kind(**config, dtype=policy)
    theirs = stock(ours).from_config(ours.get_config())
    rng = np.random.default_rng(0)
    for layer in (ours, theirs):
        layer.build((None, *shape[1:]))
    weights = [rng.uniform(0.5, 2.0, w.shape) for w in ours.get_weights()]
    for layer in (ours, theirs):
        layer.set_weights(weights)
    return ours, theirs


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float64"])
def test_outputs_moving_statistics_and_weights_are_those_of_keras(policy):
    rng = np.random.default_rng(1)
    for kind, config, shape, call in CASES:
        ours, theirs = pair(kind, config, shape, policy)
        x = rng.normal(3.0, 2.0, shape)
        y, expected = ours(x, **call), theirs(x, **call)
        assert y.dtype == expected.dtype and y.shape == expected.shape
        # float16 may round the last digit the other way.
        tolerance = {"float32": 1e-5, "mixed_float16": 4e-3, "float64": 1e-6}[policy]
        np.testing.assert_allclose(y, expected, tolerance, tolerance, err_msg=str((kind, config, call)))
        assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
        for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_half_precision_inputs_are_normalised_in_float32():
    """Squares of 1,000 overflow float16, and deviations of 0.5 beside 1,000 are all that is left."""
    x = tf.constant([[1000.0, 1000.5, 1001.0, 1001.5]] * 2 + [[1002.0, 1000.0, 1000.0, 1001.0]], tf.float16)
    exact = np.asarray(x, "float64")
    for layer, axis in (
        (LayerNormalization(dtype="mixed_float16"), 1),
        (GroupNormalization(1, dtype="mixed_float16"), 1),
        (BatchNormalization(dtype="mixed_float16"), 0),
    ):
        expected = (exact - exact.mean(axis, keepdims=True)) / np.sqrt(exact.var(axis, keepdims=True) + 1e-3)
        y = layer(x, training=True) if axis == 0 else layer(x)
        assert y.dtype == tf.float16
        np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)


def test_masked_rows_may_hold_anything():
    layer = BatchNormalization(momentum=0.0)
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("float32")
    x[~MASK] = np.nan
    y = np.asarray(layer(x, training=True, mask=MASK))
    np.testing.assert_allclose(layer.moving_mean, x[MASK].mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, x[MASK].var(0), rtol=1e-5)
    assert np.isfinite(y[MASK]).all()


@pytest.mark.parametrize("synchronized", [False, True])
def test_under_replicas_as_in_keras(mirrored_strategy, synchronized):
    """Two replicas with rows of their own: each its own statistics, or those of both where synchronised."""
    x = np.random.default_rng(0).normal(2.0, 1.5, (6, 3)).astype("float32")
    parts = [x[:4], x[4:]]
    with mirrored_strategy.scope():
        layer = BatchNormalization(momentum=0.0, epsilon=0.0, synchronized=synchronized)
        layer.build((None, 3))

    @tf.function
    def step(part):
        with tf.GradientTape() as tape:
            tape.watch(part)
            y = layer(part, training=True)
            loss = tf.reduce_sum(y**3)
        return y, tape.gradient(loss, part)

    @tf.function
    def run():
        values = mirrored_strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )
        return mirrored_strategy.run(step, (values,))

    y, gradient = map(mirrored_strategy.experimental_local_results, run())
    for i, part in enumerate(parts):
        over = x if synchronized else part
        np.testing.assert_allclose(y[i], (part - over.mean(0)) / over.std(0), rtol=1e-4, atol=1e-5)
    if synchronized:
        single = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(single)
            alone = BatchNormalization(epsilon=0.0)(single, training=True)
            loss = tf.reduce_sum(alone**3)
        np.testing.assert_allclose(np.concatenate(gradient), tape.gradient(loss, single), rtol=1e-3, atol=1e-4)


def model_of(batch, layer, group):
    return keras.Sequential(
        [keras.Input((3, 4)), L.Dense(4), batch(), layer(epsilon=0.1), group(2)],
        name="model",
    )


def with_weights_of_its_own(model):
    """The model with weights and moving statistics that are no zeros or ones."""
    rng = np.random.default_rng(0)
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    model.set_weights([rng.uniform(0.5, 2.0, w.shape) for w in model.get_weights()])
    return model, rng.normal(size=(8, 3, 4)).astype("float32")


OURS = (BatchNormalization, LayerNormalization, GroupNormalization)
STOCK = (L.BatchNormalization, L.LayerNormalization, L.GroupNormalization)


@pytest.mark.parametrize(("writer", "reader"), [(OURS, STOCK), (STOCK, OURS)], ids=["ours to stock", "stock to ours"])
def test_weights_interchange(writer, reader, tmp_path):
    model, x = with_weights_of_its_own(model_of(*writer))
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    for name in ("model.keras", "model.weights.h5"):
        other = model_of(*reader)
        other.load_weights(tmp_path / name)
        np.testing.assert_allclose(other(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_file_of_ours_loads_with_stock_layers_where_gradalign_is_missing(tmp_path, monkeypatch):
    model, x = with_weights_of_its_own(model_of(*OURS))
    model.save(tmp_path / "model.keras")
    for kind in OURS:
        monkeypatch.delitem(keras.saving.get_custom_objects(), f"gradalign>{kind.__name__}")
    names = {f"gradalign>{kind.__name__}": kind for kind in STOCK}
    other = keras.models.load_model(tmp_path / "model.keras", custom_objects=names)
    assert [type(layer) for layer in other.layers[1:]] == list(STOCK)
    np.testing.assert_allclose(other(x), model(x), rtol=1e-5, atol=1e-6)


def test_files_of_ours_load_as_ours(tmp_path):
    model, x = with_weights_of_its_own(model_of(*OURS))
    model.save(tmp_path / "model.keras")
    for other in (
        keras.models.load_model(tmp_path / "model.keras"),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert [type(layer) for layer in other.layers[1:]] == list(OURS)
        np.testing.assert_array_equal(other(x), model(x))


@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_unknown_sizes(mode):
    """Free axes: batch and steps are not known when the function is traced."""
    layers = [LayerNormalization(), BatchNormalization(), GroupNormalization(2)]
    for layer in layers:
        layer.build((None, None, 4))

    def run(x):
        return layers[2](layers[1](layers[0](x), training=True))

    spec = tf.TensorSpec((None, None, 4))
    compiled = tf.function(run, input_signature=[spec], jit_compile=mode == "jit", autograph=False)
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 3, 4)).astype("float32"))
    np.testing.assert_allclose(compiled(x), in_mode(run, "eager")(x), rtol=1e-4, atol=1e-5)
    assert compiled.get_concrete_function().output_shapes[-1] == 4


def test_wrong_uses_are_one_sentence():
    with pytest.raises(UserError, match=r"mask of one dimension less than its inputs; received shapes \(4,\)"):
        BatchNormalization()(tf.ones([4, 3, 2]), training=True, mask=tf.ones([4], tf.bool))
    for kind in (LSTM, GRU):
        with pytest.raises(UserError, match=rf"{kind.__name__} .* was given use_cudnn=True, but it is there to be"):
            kind(2, use_cudnn=True)


@pytest.mark.skipif("renorm" not in L.BatchNormalization().get_config(), reason="this Keras has no renorm")
def test_renorm_is_refused():
    with pytest.raises(UserError, match=r"was given renorm=True, .* use renorm=False"):
        BatchNormalization(renorm=True)(tf.ones([4, 3]), training=True)
