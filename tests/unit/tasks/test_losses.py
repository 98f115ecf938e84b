"""Row losses and their weighted means."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks import check_reduction, labelled_rows, row_losses, weighted_mean


def losses_of(identifier, y_true, y_pred, task="click"):
    return row_losses(task, identifier, labelled_rows(tf.constant(y_true), None, "float32"), tf.constant(y_pred))


BCE = [-math.log(0.8), -math.log(1 - 0.3)]


@pytest.mark.parametrize(
    "loss", ["binary_crossentropy", "bce", keras.losses.binary_crossentropy, keras.losses.BinaryCrossentropy()]
)
@pytest.mark.parametrize("y_true", [[1.0, 0.0], [[1.0], [0.0]], [1, 0]], ids=["row", "column", "int"])
@pytest.mark.parametrize("y_pred", [[0.8, 0.3], [[0.8], [0.3]]], ids=["row", "column"])
def test_binary_cross_entropy_of_each_row(loss, y_true, y_pred):
    found = losses_of(loss, y_true, y_pred)
    assert found.shape == (2,)
    np.testing.assert_allclose(found, BCE, rtol=1e-5)


def test_settings_of_a_loss_object_hold():
    """From logits, smoothed: y = 0.9 · 1 + 0.05."""
    loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)
    p = 1 / (1 + math.exp(-2.0))
    np.testing.assert_allclose(
        losses_of(loss, [1.0], [[2.0]]), [-0.95 * math.log(p) - 0.05 * math.log(1 - p)], rtol=1e-5
    )


def test_classes():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    wanted = [math.log(1 + math.exp(-1.0) + math.exp(-2.0)), math.log(3.0)]
    np.testing.assert_allclose(losses_of(loss, [0, 2], [[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), wanted, rtol=1e-6)


def test_a_function_of_the_user():
    np.testing.assert_allclose(losses_of(lambda y, p: tf.abs(y - p)[:, 0], [1.0, 2.0], [[3.0], [2.5]]), [2.0, 0.5])


def test_sequences_are_averaged_per_row():
    """Mean squared error over channels, then over steps."""
    found = losses_of("mse", [[[0.0], [0.0]], [[0.0], [0.0]]], [[[1.0], [3.0]], [[0.0], [2.0]]])
    assert found.numpy().tolist() == [5.0, 2.0]


def test_rows_without_a_label_send_nothing_back():
    """What NaN would do behind a logarithm."""
    rows = labelled_rows(tf.constant([1.0, float("nan")]), None, "float32")
    p = tf.constant([[0.5], [0.0]])
    with tf.GradientTape() as tape:
        tape.watch(p)
        total = tf.reduce_sum(row_losses("click", "bce", rows, p) * rows.weight)
    assert float(total) == pytest.approx(math.log(2.0), rel=1e-5)
    np.testing.assert_allclose(tape.gradient(total, p), [[-2.0], [0.0]], rtol=1e-5)


def test_the_dtype_is_that_of_the_loss():
    keras.config.set_floatx("float64")
    assert losses_of("mse", [1.0], tf.constant([[0.5]], tf.float16)).dtype == tf.float64


def test_a_scalar_loss_is_refused():
    with pytest.raises(UserError, match=r'loss of task "click" returns one number.*\(B,\)'):
        losses_of(lambda y, p: tf.reduce_mean(tf.square(y - p)), [1.0, 2.0], [[3.0], [2.5]])


def test_sums_are_refused_by_name():
    for use in (check_reduction, lambda task, loss: losses_of(loss, [1.0], [[0.5]], task)):
        with pytest.raises(UserError, match='loss of task "buy" has reduction="sum"'):
            use("buy", keras.losses.MeanSquaredError(reduction="sum"))
    for fine in ("mse", keras.losses.MeanSquaredError(), keras.losses.MeanSquaredError(reduction=None), lambda y, p: p):
        check_reduction("buy", fine)


def test_masked_sequences_are_refused():
    table = keras.layers.Embedding(3, 1, mask_zero=True)
    rows = labelled_rows(tf.zeros([1, 2, 1]), None, "float32")
    with pytest.raises(UserError, match='predictions of task "click" are sequences with a mask'):
        row_losses("click", "mse", rows, table(tf.constant([[1, 0]])))


def test_weighted_mean_is_zero_with_zero_gradient_without_weight():
    total, weight = tf.constant(6.0), tf.constant(4.0)
    assert float(weighted_mean(total, weight)) == 1.5
    with tf.GradientTape() as tape:
        nothing = tf.constant([0.0, 0.0])
        tape.watch(nothing)
        mean = weighted_mean(tf.reduce_sum(nothing * 0.0), tf.constant(0.0))
    assert float(mean) == 0.0
    assert tape.gradient(mean, nothing).numpy().tolist() == [0.0, 0.0]
