"""dA / d(variable) of every default building block against central differences of A itself, in float64.

The blocks are `architectures.shared_private` with all three kinds of fields, its towers, and the alignment's own
discriminator. A is differenced as a plain function of the weights; the reversal then says -strength for whatever
lies below it, and +1 for the discriminator above it.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.layers import Categorical, MultiValued, Numeric

from .keras_side import exact_gelu

FIELD_KINDS = {"city": Categorical(6), "price": Numeric(), "tags": MultiValued(7)}
TASKS = ("click", "buy")
WEIGHT, ROWS, STEP = 0.3, 6, 1e-5


def inputs() -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 7, size=(ROWS, 3))  # 0 is padding
    tags[2] = 0
    values = {"city": rng.integers(6, size=ROWS), "price": rng.normal(size=ROWS), "tags": tags}
    return {name: tf.constant(value, tf.float64 if name == "price" else tf.int32) for name, value in values.items()}


class Blocks:
    """The default blocks, and the alignment loss as a function of their weights."""

    def __init__(self, normalize: str, activation: object = exact_gelu) -> None:
        rng = np.random.default_rng(1)
        self.x = inputs()
        self.labels = {task: tf.constant(rng.integers(2, size=ROWS), tf.float64) for task in TASKS}
        self.masks = {"buy": tf.constant([True, True, False, True, True, False])}
        self.base = ga.architectures.shared_private(
            FIELD_KINDS, TASKS, shared_dim=3, private_dim=2, towers=(6, 4), activation=activation
        )
        self.alignment = ga.AdversarialAlignment(WEIGHT, normalize=normalize, schedule=1.0)
        self.loss()  # builds the discriminator
        discriminator = self.alignment.discriminator
        self.variables = {v.path: v for v in [*self.base.trainable_variables, *discriminator.trainable_variables]}
        self.adversary = {v.path for v in discriminator.trainable_variables}
        for variable in self.variables.values():
            variable.assign(rng.normal(size=variable.shape) * (0.3 if len(variable.shape) == 1 else 0.7))
        self.traced_loss = tf.function(self.loss, autograph=False)  # differences take a hundred values

    def loss(self) -> tf.Tensor:
        layer = self.base.get_layer
        shared = layer("shared_embedding")(self.x)

        def row_losses(s):
            losses = {}
            for task in TASKS:
                z = layer(f"tower_{task}")([s, layer(f"private_embedding_{task}")(self.x)])
                losses[task] = keras.losses.binary_crossentropy(self.labels[task][:, None], layer(task)(z))
            return losses

        _, grads = ga.task_gradients(row_losses, shared)
        return self.alignment(grads, masks=self.masks)

    def difference(self, variable: keras.Variable, direction: np.ndarray) -> float:
        """The derivative of A along `direction`, from its values alone."""
        start, values = variable.numpy(), []
        for side in (1, -1):
            variable.assign(start + side * STEP * direction)
            values.append(float(self.traced_loss()))
        variable.assign(start)
        return (values[0] - values[1]) / (2 * STEP)


@pytest.mark.parametrize("normalize", ["batch", "l2", "none"])
def test_every_variable_of_the_default_blocks(normalize, floatx):
    blocks = Blocks(normalize)
    with tf.GradientTape() as tape:
        loss = blocks.loss()
    gradients = tape.gradient(loss, [v.value for v in blocks.variables.values()])
    rng = np.random.default_rng(2)
    for (path, variable), gradient in zip(blocks.variables.items(), gradients, strict=True):
        sign = 1.0 if path in blocks.adversary else -WEIGHT
        got = tf.convert_to_tensor(gradient).numpy()
        random, steepest = rng.normal(size=got.shape), got / max(np.abs(got).max(), 1e-12)
        for direction in (random, steepest):
            wanted = sign * blocks.difference(variable, direction)
            assert np.vdot(got, direction) == pytest.approx(wanted, rel=1e-5, abs=1e-9), path
        # With "l2" a last bias only scales the logit's gradient, so it has no say; everything else must be alive.
        scales_only = normalize == "l2" and path.startswith("tower") and path.endswith("logit/bias")
        largest = np.abs(got).max()
        assert largest < 1e-12 if scales_only else largest > 1e-7, path
    kinds = {path.rpartition("/")[2] for path in blocks.variables}
    assert kinds == {"table", "projection", "kernel", "bias"}
    assert len(blocks.variables) == 2 * 3 + 2 * 6 + 6  # embeddings (shared, click, buy), two towers, discriminator


def test_relu_towers_with_l2_are_dead_below_them(floatx):
    """Trap 1: A does not move with the embeddings, neither by its gradient nor by its values."""
    blocks = Blocks("l2", "relu")
    blocks.traced_loss = blocks.loss  # two values are not worth a trace
    path = "shared_embedding/table"
    variable = blocks.variables[path]
    with tf.GradientTape() as tape:
        loss = blocks.loss()
    gradient = tf.convert_to_tensor(tape.gradient(loss, variable.value)).numpy()
    assert np.abs(gradient).max() < 1e-12
    direction = np.random.default_rng(3).normal(size=gradient.shape)
    assert blocks.difference(variable, direction) == pytest.approx(0.0, abs=1e-9)
