"""The weighted and the focal binary cross-entropy against PyTorch and Keras, at first and second order."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import gradalign as ga
from gradalign.losses import WeightedBinaryCrossentropy
from tests.unit.run_modes import MODES, in_mode

LOGITS = [-40.0, -30.0, -12.0, -1.5, 0.0, 0.3, 12.0, 30.0, 40.0]


class BehindSigmoid(WeightedBinaryCrossentropy):
    """Takes logits and sees what their sigmoid returns."""

    def call(self, y_true, y_pred):
        return super().call(y_true, keras.activations.sigmoid(y_pred))


def derivatives(loss, labels, inputs, *, mode="graph"):
    """Values of the rows, and their first and second derivative by the input."""

    def run(z):
        with tf.GradientTape() as outer:
            outer.watch(z)
            with tf.GradientTape() as inner:
                inner.watch(z)
                values = loss.call(labels, z)
            first = inner.gradient(values, z)
        return values, first[:, 0], outer.gradient(first, z)[:, 0]

    return [part.numpy() for part in in_mode(run, mode)(inputs)]


def of_torch(logits, labels, pos_weight, smoothing, gamma):
    """PyTorch's own loss with `pos_weight`; with `gamma`, the paper's formula in PyTorch."""
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(labels, dtype=torch.float64) * (1 - smoothing) + smoothing / 2
    if gamma:
        log_p, log_q = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
        values = -pos_weight * y * (gamma * log_q).exp() * log_p - (1 - y) * (gamma * log_p).exp() * log_q
    else:
        weight = torch.tensor(pos_weight, dtype=torch.float64)
        values = torch.nn.BCEWithLogitsLoss(pos_weight=weight, reduction="none")(z, y)
    [first] = torch.autograd.grad(values.sum(), z, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), z)
    return [part.detach().numpy() for part in (values, first, second)]


@pytest.mark.parametrize(
    ("pos_weight", "smoothing", "gamma"), [(5.0, 0.0, 0.0), (0.25, 0.2, 0.0), (1.0, 0.0, 0.0), (3.0, 0.1, 1.5)]
)
def test_equal_to_pytorch_at_every_order(pos_weight, smoothing, gamma):
    logits, labels = np.repeat(LOGITS, 2), np.tile([0.0, 1.0], len(LOGITS))
    wanted = of_torch(logits, labels, pos_weight, smoothing, gamma)
    settings = {"pos_weight": pos_weight, "label_smoothing": smoothing, "gamma": gamma}
    for dtype, relative, absolute in (("float64", 1e-12, 1e-13), ("float32", 2e-6, 1e-5)):
        y, z = tf.constant(labels[:, None], dtype), tf.constant(logits[:, None], dtype)
        # A sigmoid hands its logits on, so that probabilities are as exact.
        for loss in (
            WeightedBinaryCrossentropy(from_logits=True, dtype=dtype, **settings),
            BehindSigmoid(dtype=dtype, **settings),
        ):
            # The loss of logits is within that of probabilities, once these have handed theirs on.
            for mode in MODES if dtype == "float32" and gamma and not loss.from_logits else ("eager",):
                values, *orders = derivatives(loss, y, z, mode=mode)
                # Values of 1e-14 and less are rounded in PyTorch.
                np.testing.assert_allclose(values, wanted[0], rtol=relative, atol=1e-14)
                for found, order in zip(orders, wanted[1:], strict=True):
                    np.testing.assert_allclose(found, order, rtol=relative, atol=absolute)


def test_plain_probabilities():
    """By hand: -[w y (1 - p)^gamma log p + (1 - y) p^gamma log(1 - p)], mean over the columns."""
    y, p = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.8, 0.3], [0.5, 0.25]])
    loss = WeightedBinaryCrossentropy(4.0, gamma=2.0, reduction=None, dtype="float64")
    wanted = -(4.0 * y * (1 - p) ** 2 * np.log(p) + (1 - y) * p**2 * np.log(1 - p)).mean(axis=1)
    np.testing.assert_allclose(loss(y, p), wanted, rtol=1e-12)


def test_equal_to_keras_where_keras_has_it():
    y, p = np.array([[1.0], [0.0], [1.0], [0.0]]), np.array([[0.8], [0.3], [0.01], [0.9]])
    for smoothing in (0.0, 0.1):
        ours = WeightedBinaryCrossentropy(label_smoothing=smoothing, dtype="float64")(y, p)
        theirs = keras.losses.BinaryCrossentropy(label_smoothing=smoothing, dtype="float64")(y, p)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    ours = WeightedBinaryCrossentropy(gamma=1.5, dtype="float64")(y, p)
    np.testing.assert_allclose(ours, keras.losses.BinaryFocalCrossentropy(gamma=1.5, dtype="float64")(y, p), rtol=1e-12)


def test_it_is_saved_with_the_model_and_by_itself(tmp_path):
    loss = WeightedBinaryCrossentropy(2.0, from_logits=True, label_smoothing=0.1, gamma=0.5, name="rare")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    assert (again.pos_weight, again.label_smoothing, again.gamma, again.from_logits) == (2.0, 0.1, 0.5, True)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss=loss)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").loss.get_config() == loss.get_config()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pos_weight": 0}, "pos_weight is a number above 0; received 0"),
        ({"pos_weight": [1.0, 2.0]}, "pos_weight is a number above 0"),
        ({"pos_weight": float("nan")}, "received nan"),
        ({"label_smoothing": 1.0}, "label_smoothing is a number from 0 up to 1; received 1.0"),
        ({"gamma": -1}, "gamma is a number of 0 or more; received -1"),
        ({"gamma": True}, "received True"),
    ],
)
def test_what_is_refused(settings, words):
    with pytest.raises(ga.UserError, match=words):
        WeightedBinaryCrossentropy(**settings)
