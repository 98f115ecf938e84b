"""Gradients as a product: the same numbers as the gradients themselves, normalised, at first order."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gradalign.gradients.factors import Factors, normalize_factors
from gradalign.gradients.normalization import METHODS, normalize_rows

NAN = float("nan")
MATRIX = np.random.default_rng(1).normal(size=(5, 2))
RUNS = {"eager": lambda f: f, "jit": lambda f: tf.function(f, jit_compile=True, autograph=False)}


def parts_of(dtype="float64", size=1.0, spread=0.0):
    """Scale, left and kernel of six rows; the rows' lengths spread over `spread` powers of ten."""
    rng = np.random.default_rng(0)
    scale = rng.normal(size=(6, 1)) * size
    left = rng.normal(size=(6, 3)) * 10.0 ** np.linspace(-spread, 0.0, 6)[:, None]
    return [tf.constant(part, dtype) for part in (scale, left, rng.normal(size=(5, 3)))]


def factors_of(scale, left, kernel):
    return Factors(scale, left, kernel, tf.matmul(left, kernel, transpose_b=True))


def value_and_gradients(parts, kept, method, factored):
    with tf.GradientTape() as tape:
        tape.watch(parts)
        factors = factors_of(*parts)
        if factored:
            product = normalize_factors(factors, kept, method).times(tf.constant(MATRIX, parts[0].dtype))
        else:
            rows = normalize_rows(factors.scale * factors.inner, kept, method)
            product = tf.matmul(rows, tf.constant(MATRIX, parts[0].dtype))
        value = tf.reduce_sum(product**3 + product)
    found = tape.gradient(value, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [product, *found]


@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize("method", METHODS)
def test_the_same_as_the_rows(method, mode):
    parts, kept = parts_of(), tf.constant([True, True, False, True, False, True])
    got, wanted = (
        RUNS[mode](lambda f=factored: value_and_gradients(parts, kept, method, f))() for factored in (True, False)
    )
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)
    assert not np.any(got[0][2]) and np.all(got[0][1])


@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize("method", ["l2", "batch"])
@pytest.mark.parametrize(("size", "spread"), [(1e-30, 0), (1e30, 0), (1.0, 25)])
def test_every_scale_in_float32(size, spread, method, mode):
    """Against float64; lengths that spread over 25 powers of ten have squares that float32 does not hold."""
    kept = tf.fill([6], True)
    narrow, wide = (
        RUNS[mode](
            lambda dtype=dtype: normalize_factors(factors_of(*parts_of(dtype, size, spread)), kept, method).times(
                tf.constant(MATRIX, dtype)
            )
        )()
        for dtype in ("float32", "float64")
    )
    np.testing.assert_allclose(narrow, wide, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_is_left_out_may_hold_anything(method):
    scale, left, kernel = parts_of()
    left = tf.tensor_scatter_nd_update(left, [[1, 0]], tf.constant([NAN], left.dtype))
    kept = tf.constant([True, False, True, True, True, True])
    product, *found = value_and_gradients([scale, left, kernel], kept, method, factored=True)
    assert np.isfinite(product).all() and not product[1].numpy().any()
    assert np.isfinite(found[0]).all()


def test_rows_without_gradient():
    scale, left, kernel = parts_of()
    factors = factors_of(tf.concat([[[0.0]], scale[1:]], 0), tf.concat([left[:-1], tf.zeros_like(left[:1])], 0), kernel)
    assert factors.nonzero_rows().numpy().tolist() == [False, True, True, True, True, False]
    nothing = tf.fill([6], False)
    for method in METHODS:
        assert not normalize_factors(factors, nothing, method).times(MATRIX).numpy().any()


def test_reversed_once():
    parts = parts_of()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(parts)
        plain, turned = (
            tf.reduce_sum(f.times(MATRIX) ** 2) for f in (factors_of(*parts), factors_of(*parts).reversed(0.5))
        )
    for forth, back in zip(tape.gradient(plain, parts), tape.gradient(turned, parts), strict=True):
        np.testing.assert_allclose(back, -0.5 * forth, rtol=1e-12)


@pytest.mark.parametrize("factored", [True, False])
def test_one_scale_over_two_replicas(mirrored_strategy, factored):
    """ "batch" divides by what all replicas' rows say; value and gradients are those of the whole batch."""
    scale, left, kernel = parts_of()
    kept = tf.fill([6], True)
    wanted = value_and_gradients([scale, left, kernel], kept, "batch", factored)

    def step():
        half = slice(0, 3) if tf.distribute.get_replica_context().replica_id_in_sync_group == 0 else slice(3, 6)
        return value_and_gradients([scale[half], left[half], kernel], kept[half], "batch", factored)

    product, of_scale, of_left, of_kernel = (
        mirrored_strategy.experimental_local_results(value) for value in mirrored_strategy.run(step)
    )
    for halves, whole in zip((product, of_scale, of_left), wanted, strict=False):
        np.testing.assert_allclose(np.concatenate(halves), whole, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(sum(of_kernel), wanted[3], rtol=1e-10, atol=1e-12)
