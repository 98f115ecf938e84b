"""The default discriminator on the factors of the gradients: the same step as on the gradients themselves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.gradients.task_gradients import TaskTape
from gradalign.layers import Tower
from tests.unit.small_models import restart

ROWS, WIDTH = 9, 7
TASKS = ("click", "buy")
MASKS = {"click": [True] * 6 + [False] * 3, "buy": [True, False] * 4 + [True]}


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


class Loop:
    """Two towers on one shared tensor, and one step of their losses with an alignment."""

    def __init__(self, *, units=(4, 3), activation="relu", private=0, sampled=None, **settings):
        self.rows = None if sampled is None else tf.constant(sampled)
        rng = np.random.default_rng(0)
        self.alignment = ga.AdversarialAlignment(0.5, schedule=1.0, **settings)
        self.towers = [Tower(units, activation, output_activation=None) for _ in TASKS]
        widths = [WIDTH, private] if private else [WIDTH]
        for tower in self.towers:
            tower.build([(None, width) for width in widths])
            for weight in tower.trainable_variables:
                weight.assign(rng.normal(size=weight.shape))
        self.inputs = [tf.constant(rng.normal(size=(ROWS, width))) for width in widths]
        self.own = tf.constant(rng.integers(2, size=ROWS)) if self.alignment.row_task else None
        self.alignment.build_for(list(TASKS), [[None, WIDTH]], "float64")
        for weight in self.alignment.trainable_variables:
            weight.assign(rng.normal(size=weight.shape))

    def step(self, factored):
        """Return the alignment loss and its gradient at inputs and all weights, and whether factors were known."""
        towers = [weight.value for tower in self.towers for weight in tower.trainable_variables]
        weights = [*self.inputs, *towers, *(weight.value for weight in self.alignment.trainable_variables)]
        with tf.GradientTape() as outer:
            outer.watch(self.inputs)
            limited = self.alignment.reach == "shared"
            with TaskTape(limit_reach=limited, rows=self.rows, factored=factored) as tape:
                shared = tape.watch(tf.identity(self.inputs[0]))
                parts = [shared, *self.inputs[1:]]
                masks = {task: tf.constant(MASKS[task]) for task in TASKS}
                losses = {
                    task: tf.reduce_sum(tf.where(masks[task], tf.nn.softplus(tower(parts)[:, 0]), 0.0))
                    for task, tower in zip(TASKS, self.towers, strict=True)
                }
            gradients = tape.gradients(losses, [shared])
            loss = self.alignment(gradients, masks, self.own, update_metrics=True, rows=self.rows)
        takes = gradients.factors is not None and self.alignment.takes_factors(gradients.factors)
        return loss, outer.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO), takes


RUNS = {
    "eager": lambda f: f,
    "graph": lambda f: tf.function(f, autograph=False),
    "jit": lambda f: tf.function(f, autograph=False, jit_compile=True),
}
CASES = [
    ("eager", {"normalize": "batch"}),
    ("graph", {"normalize": "batch", "activation": "leaky_relu"}),
    ("jit", {"normalize": "batch", "private": 2}),
    ("eager", {"normalize": "l2", "activation": "prelu"}),
    ("jit", {"normalize": "l2"}),
    ("eager", {"normalize": "none", "private": 2}),
    ("jit", {"normalize": "batch", "activation": "gelu", "private": 2}),
    ("eager", {"normalize": "l2", "activation": "tanh"}),
    ("eager", {"normalize": "batch", "row_task": "which"}),
    ("jit", {"normalize": "batch", "private": 2, "sampled": [5, 0, 8, 1]}),
    ("eager", {"normalize": "l2", "activation": "prelu", "sampled": [5, 0, 8, 1]}),
    ("graph", {"normalize": "none", "row_task": "which", "sampled": [5, 0, 2, 3]}),
]


@pytest.mark.parametrize(("mode", "settings"), CASES, ids=str)
def test_the_step_on_factors_is_the_step_on_gradients(mode, settings):
    loop = Loop(**settings)
    used = []

    def step(factored):
        loss, gradients, takes = loop.step(factored)
        used.append(takes)
        return loss, gradients

    (loss, found), (wanted_loss, wanted) = RUNS[mode](lambda: step(True))(), step(False)
    assert used == [True, False]
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-12)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    # The first kernel and the discriminator learn from it; the input does not where a ReLU tower's directions are all.
    assert np.any(found[len(loop.inputs)]) and np.any(found[-2])
    straight = settings["normalize"] == "l2" and settings.get("activation") != "tanh"
    assert np.any(found[0]) == (not straight)


NOT_TAKEN = {
    "a first layer as wide as the input": {"units": (WIDTH, 3)},
    'reach="shared"': {"reach": "shared"},
    "a discriminator of the user's": {"discriminator": lambda: keras.layers.Dense(2)},
    "rows that the alignment draws from the gradients of all": {"fraction": 0.5},
    "drawn rows of a curved tower": {"activation": "gelu", "sampled": [5, 0, 8, 1]},
}


@pytest.mark.parametrize("why", NOT_TAKEN)
def test_where_the_gradients_are_looked_at_themselves(why):
    settings = {key: value() if callable(value) else value for key, value in NOT_TAKEN[why].items()}
    loop = Loop(**settings)
    seen = []
    align = loop.alignment.align
    loop.alignment.align = lambda rows, update_metrics: (seen.append(rows.factors), align(rows, update_metrics))[1]
    loop.step(factored=True)
    assert seen == [None]


def test_a_gradient_that_comes_from_elsewhere_too_has_no_factors():
    tower = Tower((4,), "relu", output_activation=None)
    tower.build((None, WIDTH))
    with tf.GradientTape(), TaskTape(factored=True) as tape:
        shared = tape.watch(tf.ones((3, WIDTH), tf.float64))
        losses = {"a": tf.reduce_sum(tower(shared)), "b": tf.reduce_sum(tower(shared)) + tf.reduce_sum(shared**2)}
    assert tape.gradients(losses, [shared]).factors is None


def test_a_model_trains_on_factors(monkeypatch):
    """`fit`, whose steps take them, against one that looks at the gradients themselves."""
    fields = {"f": ga.layers.Categorical(20), "g": ga.layers.Categorical(20)}
    rng = np.random.default_rng(0)
    x = {name: rng.integers(20, size=8).astype("int32") for name in fields}
    y = {task: rng.integers(2, size=8).astype("float64") for task in TASKS}
    seen, weights = [], []
    align = ga.AdversarialAlignment.align
    monkeypatch.setattr(
        ga.AdversarialAlignment,
        "align",
        lambda self, rows, update_metrics: (
            seen.append(rows.factors is not None),
            align(self, rows, update_metrics),
        )[1],
    )
    for factored in (True, False):
        if not factored:
            monkeypatch.setattr(ga.AdversarialAlignment, "takes_factors", lambda self, factors: False)
        restart()
        base = ga.architectures.shared_private(
            fields, TASKS, shared_dim=4, private_dim=2, towers=(5,), activation="relu"
        )
        model = ga.MultiTaskModel(base, "shared_embedding", ga.AdversarialAlignment(0.5, schedule=1.0))
        model.compile(keras.optimizers.SGD(0.1), loss="binary_crossentropy", run_eagerly=not factored)
        seen.clear()
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        assert seen[-1] is factored
        weights.append([v.numpy() for v in model.trainable_variables + model.alignment.trainable_variables])
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
