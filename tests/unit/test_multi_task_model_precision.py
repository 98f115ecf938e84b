"""Mixed precision and float64: the loss scale does not show, and alignment and discriminator compute in full."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import aligned, data, functional, restart

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

SGD, LossScale = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer


class Probe(keras.layers.Layer):
    """Passes rows on and notes their dtype."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    def call(self, rows):
        self.seen.append(rows.dtype.name)
        return rows


def one_step(policy, make_optimizer, discriminator=None):
    """Return the gradients that one step applied to base and discriminator, and the model."""
    restart()
    keras.config.set_dtype_policy(policy)
    made = None if discriminator is None else discriminator()
    model = aligned(functional(normalize=True), discriminator=made)
    model.compile(make_optimizer(), loss="binary_crossentropy", discriminator_optimizer=SGD(1.0), run_eagerly=True)
    variables = [*model.base.trainable_variables, *model.alignment.trainable_variables]
    before = [v.numpy().astype("float64") for v in variables]
    x, y = data(24, missing=0.3)
    model.fit(x, y, batch_size=24, shuffle=False, verbose=0)
    return {f"{v.path}/{i}": b - v.numpy() for i, (v, b) in enumerate(zip(variables, before, strict=True))}, model


@pytest.fixture(scope="module")
def in_float32():
    return one_step("float32", lambda: SGD(1.0))[0]


@pytest.mark.parametrize(("policy", "coarseness"), [("mixed_float16", 0.01), ("mixed_bfloat16", 0.08)])
def test_gradients_do_not_depend_on_the_loss_scale(policy, coarseness, in_float32):
    # Keras scales by itself in float16 only, by 2^15 at first; bfloat16 reaches as far down as float32.
    if policy == "mixed_float16":
        small, _ = one_step(policy, lambda: LossScale(SGD(1.0), initial_scale=1.0))
        large, scaled = one_step(policy, lambda: SGD(1.0))
    else:
        small, unscaled = one_step(policy, lambda: SGD(1.0))
        large, scaled = one_step(policy, lambda: LossScale(SGD(1.0), initial_scale=2.0**15))
        assert isinstance(unscaled.optimizer, SGD)
    assert float(scaled.optimizer.dynamic_scale) == 2.0**15  # no overflow
    size = np.sqrt(sum(np.sum(g**2) for g in in_float32.values()))
    assert list(small) == list(large)
    # A power of two scales without rounding, but for gradients below float16's smallest numbers.
    tolerance = 2e-3 if policy == "mixed_float16" else 1e-6
    for name, expected in zip(small, in_float32.values(), strict=True):
        np.testing.assert_allclose(small[name], large[name], atol=tolerance * size, err_msg=name)
        np.testing.assert_allclose(large[name], expected, atol=coarseness * size, err_msg=name)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [("mixed_float16", "sequential"), ("mixed_bfloat16", "functional"), ("mixed_float16", "not built")],
)
def test_a_given_discriminator_computes_in_float32(policy, kind):
    keras.config.set_dtype_policy(policy)
    probe = Probe()
    layers = [keras.layers.Dense(3, "tanh"), keras.layers.LayerNormalization(), probe, keras.layers.Dense(2)]
    if kind == "functional":
        rows = keras.Input((5,))
        given = keras.Model(rows, keras.Sequential(layers)(rows))
    else:
        given = keras.Sequential([*([] if kind == "not built" else [keras.Input((5,))]), *layers])
    model = aligned(functional(), discriminator=given)
    probe.seen.clear()
    gradients = {task: tf.cast([[1e-9, 2e-9, -1e-9, 0.0, 0.0]], policy[6:]) for task in model.tasks}
    loss = model.alignment(gradients)
    assert loss.dtype == tf.float32 and probe.seen == ["float32"]
    assert given(tf.ones([2, 5])).dtype == tf.float32
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(given), {"Probe": Probe})
    other = aligned(functional(), discriminator=loaded).alignment
    assert {v.dtype for v in other.trainable_variables} == {"float32"} and other(gradients).dtype == tf.float32


def test_a_discriminator_with_coarse_weights_is_refused():
    own = keras.Sequential([keras.layers.Dense(3, name="fine"), keras.layers.Dense(2, dtype="float16", name="coarse")])
    with pytest.raises(ga.UserError, match='layer "coarse" has weights in float16'):
        aligned(functional(), discriminator=own)


def test_alignment_in_float64_where_the_gradients_are():
    keras.config.set_floatx("float64")
    probe = Probe()
    gradients, model = one_step(
        "float64", lambda: SGD(1.0), lambda: keras.Sequential([keras.Input((5,)), probe, keras.layers.Dense(2)])
    )
    assert set(probe.seen) == {"float64"} and {v.dtype for v in model.alignment.trainable_variables} == {"float64"}
    assert all(np.isfinite(g).all() for g in gradients.values())
