"""The default discriminator: shapes, weights and values by hand."""

from __future__ import annotations

import keras
import numpy as np

from gradalign.alignment import mlp_discriminator


def test_shapes_of_the_weights():
    shapes = [tuple(w.shape) for w in mlp_discriminator(5, 3).weights]
    assert shapes == [(5, 64), (64,), (64, 64), (64,), (64, 3), (3,)]
    assert [tuple(w.shape) for w in mlp_discriminator(2, 4, hidden=(7,)).weights] == [(2, 7), (7,), (7, 4), (4,)]


def test_values():
    """tanh of (ln 2, -ln 3) is (3/5, -4/5); logits by (1, -1; 3, 0) with biases (0, 0.5)."""
    discriminator = mlp_discriminator(1, 2, hidden=(2,))
    weights = [[np.log(2.0), -np.log(3.0)]], [0.0, 0.0], [[1.0, -1.0], [3.0, 0.0]], [0.0, 0.5]
    discriminator.set_weights([np.array(w) for w in weights])
    logits = discriminator(np.array([[1.0], [-1.0]]))
    np.testing.assert_allclose(logits, [[0.6 - 2.4, -0.6 + 0.5], [-0.6 + 2.4, 0.6 + 0.5]], rtol=1e-5)


def test_no_layer_mixes_the_rows():
    kinds = {type(layer) for layer in mlp_discriminator(4, 2).layers}
    assert kinds == {keras.layers.Dense}


def test_the_policy_of_the_model_does_not_reach_it():
    keras.config.set_dtype_policy("mixed_float16")
    for dtype in ("float32", "float64"):
        discriminator = mlp_discriminator(2, 2, dtype=dtype)
        assert {w.dtype for w in discriminator.weights} == {dtype}
        assert discriminator(np.ones((1, 2))).dtype == dtype
