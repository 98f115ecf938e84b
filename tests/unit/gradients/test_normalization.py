"""Normalisation by hand, against finite differences and against PyTorch without an epsilon."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
import torch

from gradalign.errors import UserError
from gradalign.gradients import nonzero_rows, normalize
from tests.unit.run_modes import MODES, in_mode

TOGETHER = True  # on one worker, so that `orders` is compiled once
METHODS = ("l2", "batch", "none")
GRADIENTS = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -1.0]])
# Root mean square of the lengths 5 and 1: sqrt(26 / 2).
BY_HAND = {
    "l2": [[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]],
    "batch": (GRADIENTS / np.sqrt(13.0)).tolist(),
    "none": GRADIENTS.tolist(),
}


def by_every_method(function, mode, methods=METHODS):
    """`{method: function(gradients, method)}` in one traced function."""
    return in_mode(lambda g: {method: function(g, method) for method in methods}, mode)


@functools.cache
def orders(mode):
    """A function of (3, 2) gradients: `{method: (values, first, second)}`, derivatives of the sum of cubes."""

    def of_method(g, method):
        with tf.GradientTape() as outer:
            outer.watch(g)
            with tf.GradientTape() as inner:
                inner.watch(g)
                q = normalize(g, method)
                value = tf.reduce_sum(q**3)
            first = inner.gradient(value, g)
            pulled = tf.reduce_sum(first**2)
        return q, first, outer.gradient(pulled, g)

    return by_every_method(of_method, mode)


@pytest.mark.parametrize("mode", MODES)
def test_values(mode):
    for method, (got, *_) in orders(mode)(tf.constant(GRADIENTS)).items():
        assert got.dtype == tf.float64
        np.testing.assert_allclose(got, BY_HAND[method], rtol=1e-12, err_msg=method)


@pytest.mark.parametrize("mode", MODES)
def test_unit_length_at_every_scale(mode):
    lengths = [1e-30, 1e-15, 1.0, 1e15, 1e30]
    rows = tf.constant([[0.6 * length, 0.0, -0.8 * length] for length in lengths], tf.float32)
    got = in_mode(lambda g: normalize(g, "l2"), mode)(rows)
    np.testing.assert_allclose(got, [[0.6, 0.0, -0.8]] * 5, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_batch_has_mean_square_length_one_at_every_scale(mode):
    function = in_mode(lambda g: normalize(g, "batch"), mode)
    for length in (1e-30, 1e-15, 1e15, 1e30):
        rows = tf.constant(length * np.array([[3.0, 0.0], [0.0, 4.0]]), tf.float32)
        got = function(rows).numpy().astype("float64")
        assert (got**2).sum(axis=1).mean() == pytest.approx(1.0, rel=1e-6), length
        assert got[1, 1] / got[0, 0] == pytest.approx(4 / 3, rel=1e-6), length


@pytest.mark.parametrize("mode", MODES)
def test_zero_rows_send_zero_back_at_first_and_second_order(mode):
    for method, (_, *derivatives) in orders(mode)(tf.constant(GRADIENTS)).items():
        for derivative in derivatives:
            assert np.isfinite(derivative).all(), method
            assert derivative.numpy()[1].tolist() == [0.0, 0.0], method
            assert np.abs(derivative.numpy()[0]).max() > 0, method


@pytest.mark.parametrize("mode", MODES)
def test_nothing_but_zero_rows(mode):
    for method, of_method in orders(mode)(tf.zeros([3, 2], tf.float64)).items():
        for found in of_method:
            assert found.numpy().tolist() == [[0.0, 0.0]] * 3, method


@pytest.mark.parametrize("mode", MODES)
def test_nan_propagates(mode):
    nan = float("nan")
    rows = tf.constant([[1.0, nan], [3.0, 4.0], [0.0, 0.0]], tf.float64)
    found = {method: got.numpy() for method, (got, *_) in orders(mode)(rows).items()}
    assert all(np.isnan(got[0, 1]) for got in found.values())
    assert np.isnan(found["batch"]).all()  # one scale for all
    assert np.isnan(found["l2"][0]).all()
    np.testing.assert_allclose(found["l2"][1], [0.6, 0.8], rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_masked_rows_are_zero_and_do_not_count(method):
    g = tf.constant([[3.0, 4.0], [7.0, 7.0], [0.0, 0.0], [0.0, -1.0], [float("nan"), 1.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(g)
        q = normalize(g, method, mask=[True, False, True, True, False])
        value = tf.reduce_sum(q**3)
    wanted = [BY_HAND[method][0], [0.0, 0.0], [0.0, 0.0], BY_HAND[method][2], [0.0, 0.0]]
    np.testing.assert_allclose(q, wanted, rtol=1e-12)
    back = tape.gradient(value, g).numpy()
    assert np.isfinite(back).all()
    assert not back[[1, 2, 4]].any() and back[0].all()


def finite_differences(f, x, step=1e-6):
    """Central differences of the scalar f at every entry of x."""
    found = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        forth, back = x.copy(), x.copy()
        forth[at] += step
        back[at] -= step
        found[at] = (f(forth) - f(back)) / (2 * step)
    return found


@pytest.mark.parametrize("method", ["l2", "batch"])
@pytest.mark.parametrize(("per", "shape"), [("row", (3, 2)), ("row", (2, 2, 2)), ("position", (2, 2, 2))], ids=str)
def test_derivatives_equal_finite_differences(per, shape, method):
    rng = np.random.default_rng(0)
    x, left = rng.normal(size=(2, *shape))
    right = rng.normal(size=shape)

    def value_at(g):
        return tf.reduce_sum(left * normalize(g, method, per=per) ** 2)

    def first(g):
        with tf.GradientTape() as tape:
            tape.watch(g)
            value = value_at(g)
        return tape.gradient(value, g)

    def second(g):
        with tf.GradientTape() as tape:
            tape.watch(g)
            with tf.GradientTape() as inner:
                inner.watch(g)
                value = value_at(g)
            pulled = tf.reduce_sum(right * inner.gradient(value, g))
        return tape.gradient(pulled, g)

    at = tf.constant(x)
    differences = finite_differences(lambda a: float(value_at(tf.constant(a))), x)
    np.testing.assert_allclose(first(at), differences, rtol=1e-6, atol=1e-8)
    differences = finite_differences(lambda a: float(np.sum(right * first(tf.constant(a)))), x)
    np.testing.assert_allclose(second(at), differences, rtol=1e-5, atol=1e-7)


def in_torch(g, method):
    """(rows, D), none of them zero."""
    if method == "l2":
        return g / torch.linalg.vector_norm(g, dim=1, keepdim=True)
    return g / torch.sqrt((g**2).sum(dim=1).mean()) if method == "batch" else g


@pytest.mark.parametrize("mode", MODES)
def test_equals_torch(mode):
    rng = np.random.default_rng(1)
    x, left = rng.normal(size=(2, 6, 3))
    x[4] = 0.0
    alive = [0, 1, 2, 3, 5]

    def both(g, method):
        with tf.GradientTape() as tape:
            tape.watch(g)
            value = tf.reduce_sum(left * normalize(g, method) ** 3)
        return value, tape.gradient(value, g)

    for method, (value, back) in by_every_method(both, mode, ("l2", "batch"))(tf.constant(x)).items():
        g = torch.tensor(x[alive], requires_grad=True)
        wanted = (torch.tensor(left[alive]) * in_torch(g, method) ** 3).sum()
        wanted.backward()
        assert float(value) == pytest.approx(wanted.item(), rel=1e-12), method
        np.testing.assert_allclose(back.numpy()[alive], g.grad, rtol=1e-10, atol=1e-13, err_msg=method)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_small_floats_come_back_as_float32(method, dtype):
    got = normalize(tf.constant(GRADIENTS, dtype), method)
    assert got.dtype == tf.float32
    np.testing.assert_allclose(got, BY_HAND[method], rtol=1e-6)


def test_rows_of_rank_3():
    """One row of length 13 over (2, 2), or positions of length 5 and 12."""
    g = tf.constant([[[3.0, 4.0], [0.0, 12.0]], [[0.0, 0.0], [0.0, 1.0]]])
    by_row = normalize(g, "l2")
    assert by_row.shape == (2, 2, 2)
    np.testing.assert_allclose(by_row[0], [[3 / 13, 4 / 13], [0.0, 12 / 13]], rtol=1e-6)
    by_position = normalize(g, "l2", per="position")
    np.testing.assert_allclose(by_position, [[[0.6, 0.8], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]], rtol=1e-6)


def test_one_scale_for_rows_or_for_positions():
    """Squared lengths: rows 169 and 1, mean 85; positions 25, 144, 1 (one is zero), mean 170/3."""
    g = tf.constant([[[3.0, 4.0], [0.0, 12.0]], [[0.0, 0.0], [0.0, 1.0]]])
    np.testing.assert_allclose(normalize(g, "batch"), g / np.sqrt(85.0), rtol=1e-6)
    np.testing.assert_allclose(normalize(g, "batch", per="position"), g / np.sqrt(170.0 / 3.0), rtol=1e-6)


def test_masks_of_positions():
    g = tf.constant([[[3.0, 4.0], [0.0, 12.0]], [[6.0, 8.0], [0.0, 1.0]]])
    by_position = normalize(g, "l2", per="position", mask=[[True, False], [False, True]])
    np.testing.assert_allclose(by_position, [[[0.6, 0.8], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]], rtol=1e-6)
    whole_rows = normalize(g, "l2", per="position", mask=[True, False])
    np.testing.assert_allclose(whole_rows, [[[0.6, 0.8], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]], rtol=1e-6)


def test_free_axes_in_a_graph():
    function = tf.function(
        lambda g: normalize(g, "l2"), input_signature=[tf.TensorSpec([None, None, 2])], autograph=False
    )
    np.testing.assert_allclose(
        function(tf.constant([[[3.0, 0.0], [0.0, 4.0]]]))[0], [[0.6, 0.0], [0.0, 0.8]], rtol=1e-6
    )


def test_which_rows_are_not_zero():
    rows = tf.constant([[0.0, 0.0], [0.0, 1e-30], [float("nan"), 0.0], [-1.0, 1.0]])
    assert nonzero_rows(rows).numpy().tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "l3"}, "received 'l3'"),
        ({"per": "channel"}, "received per='channel'"),
        ({"g": [1.0, 2.0]}, r"received shape \(2,\)"),
    ],
    ids=["method", "per", "rank"],
)
def test_bad_arguments_are_quoted(arguments, message):
    with pytest.raises(UserError, match=message):
        normalize(**{"g": GRADIENTS, **arguments})
