import random
from itertools import combinations

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign import AdversarialAlignment, MultiTaskModel, UserError
from gradalign.alignment.sampling import random_rows
from gradalign.layers import Tower
from tests.unit.small_models import discriminator, functional

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

ROWS = np.random.default_rng(0).normal(size=(4, 6))
LABELS = {"click": np.array([[1.0], [0.0], [1.0], [0.0]]), "buy": np.array([[0.0], [0.0], [1.0], [1.0]])}


class Recorder(keras.optimizers.SGD):
    """Keeps the gradients that it is given."""

    def apply_gradients(self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        self.seen = [np.asarray(tf.convert_to_tensor(g)) for g, _ in grads_and_vars]
        super().apply_gradients(grads_and_vars)


def aligned(activation, **arguments):
    random.seed(1)
    x = keras.Input((6,), name="x")
    shared = keras.layers.Dense(4, "tanh", name="encoder")(x)
    private = keras.layers.Dense(2, name="private")(x)
    towers = {task: Tower((5,), activation, name=task)([shared, private]) for task in LABELS}
    alignment = AdversarialAlignment(0.3, schedule=1.0, normalize="none", discriminator=discriminator(4), **arguments)
    return MultiTaskModel(keras.Model({"x": x}, towers), "encoder", alignment)


def gradients(model):
    """Return the model's and the discriminator's gradients of one step, in which no weight moves."""
    model.train_on_batch({"x": ROWS}, LABELS)
    return model.optimizer.seen, model.discriminator_optimizer.seen


def compiled(model):
    model.compile(Recorder(0.0), loss="binary_crossentropy", discriminator_optimizer=Recorder(0.0), run_eagerly=True)
    return model


@pytest.mark.parametrize("reach", ["all", "shared"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])  # the fast path of the towers and the general one
def test_the_expected_gradient_of_a_share_of_the_rows_is_that_of_all(activation, reach, monkeypatch):
    keras.config.set_floatx("float64")
    model = compiled(aligned(activation, fraction=0.5, reach=reach))
    found = []
    for rows in combinations(range(4), 2):
        monkeypatch.setattr(model.alignment, "sampled_rows", lambda count, rows=rows: tf.constant(rows))
        found.append(gradients(model))
    monkeypatch.setattr(model.alignment, "sampled_rows", lambda count: None)
    for drawn, whole in zip(zip(*found, strict=True), gradients(model), strict=True):
        for of_draws, of_all in zip(zip(*drawn, strict=True), whole, strict=True):
            np.testing.assert_allclose(np.mean(of_draws, axis=0), of_all, rtol=1e-10, atol=1e-14)
        assert np.std([of_draw[0] for of_draw in drawn], axis=0).max() > 0  # a draw does matter


def test_the_expected_gradient_of_every_third_step_is_that_of_every_step():
    keras.config.set_floatx("float64")
    model, whole = compiled(aligned("gelu", every=3)), gradients(compiled(aligned("gelu")))
    found = [gradients(model) for _ in range(3)]
    for step in zip(*(of_step[0] for of_step in found), whole[0], strict=True):
        np.testing.assert_allclose(np.mean(step[:3], axis=0), step[3], rtol=1e-10, atol=1e-14)
    # The discriminator learns in the first of the three steps, at its full rate, and rests in the others.
    for got, wanted in zip(found[0][1], whole[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-10)
    assert int(model.discriminator_optimizer.iterations) == 1 and int(model.alignment.step) == 3


def test_every_second_step_compiled():
    """As a graph, with a dense part: `test_dense_part.py`."""
    keras.config.set_floatx("float64")
    found = []
    for arguments in ({"run_eagerly": True}, {"jit_compile": True}):
        random.seed(1)
        alignment = AdversarialAlignment(0.3, schedule=1.0, normalize="none", every=2, discriminator=discriminator())
        model = MultiTaskModel(functional(towers=False), "encoder", alignment)
        # Momentum tells a step that is left out from one with gradients of zero.
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="binary_crossentropy", **arguments)
        history = model.fit({"x": ROWS}, LABELS, epochs=3, verbose=0, shuffle=False).history
        found.append([*model.get_weights(), *history["alignment_loss"]])
    for eager, compiled_ in zip(*found, strict=True):
        np.testing.assert_allclose(compiled_, eager, rtol=1e-9)


def test_a_share_of_the_rows_on_two_replicas(mirrored_strategy):
    with mirrored_strategy.scope():
        model = aligned("relu", fraction=0.5)
        model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    history = model.fit({"x": ROWS.astype("float32")}, LABELS, verbose=0).history
    assert np.all(np.isfinite(history["alignment_loss"]))


def test_every_is_refused_on_two_replicas(mirrored_strategy):
    with mirrored_strategy.scope():
        model = aligned("relu", every=2)
        model.compile("sgd", loss="binary_crossentropy")
    with pytest.raises(UserError, match=r"every= above 1.* works on one device.* use fraction= instead"):
        model.fit({"x": ROWS.astype("float32")}, LABELS, verbose=0)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_tanh_on_both_sides_of_a_tower(activation, monkeypatch):
    # The second derivative of tanh cannot work with sparse gradients, which those of a gather are.
    keras.config.set_floatx("float64")
    x = keras.Input((6,), name="x")
    shared = keras.layers.Dense(4, name="encoder")(x)
    towers = {task: Tower((5,), activation, output_activation="tanh") for task in LABELS}
    bent = {"click": shared, "buy": keras.layers.Activation("tanh")(shared)}
    base = keras.Model({"x": x}, {task: tower(bent[task]) for task, tower in towers.items()})
    model = MultiTaskModel(base, "encoder", AdversarialAlignment(0.3, schedule=1.0, normalize="none", fraction=0.5))
    model.compile(Recorder(0.0), loss="mse", discriminator_optimizer=Recorder(0.0), run_eagerly=True)
    found = []
    for rows in combinations(range(4), 2):
        monkeypatch.setattr(model.alignment, "sampled_rows", lambda count, rows=rows: tf.constant(rows))
        found.append(gradients(model)[0])
    monkeypatch.setattr(model.alignment, "sampled_rows", lambda count: None)
    for *of_draws, of_all in zip(*found, gradients(model)[0], strict=True):
        np.testing.assert_allclose(np.mean(of_draws, axis=0), of_all, rtol=1e-10, atol=1e-14)


def test_rows_are_drawn_evenly_and_each_once():
    seed = keras.random.SeedGenerator(0)
    draw = tf.function(lambda: random_rows(8, 0.25, seed), autograph=False)
    drawn = np.array([draw() for _ in range(400)])
    assert drawn.shape == (400, 2) and np.all(drawn[:, 0] != drawn[:, 1])
    # Each of 8 rows is drawn 100 times on average, with a standard deviation of 8.7.
    assert np.abs(np.bincount(drawn.ravel(), minlength=8) - 100).max() < 5 * 8.7


def test_at_least_one_row_whatever_the_batch():
    assert random_rows(2, 0.1, 0).shape == (1,)
    dynamic = tf.function(lambda count: random_rows(count, 0.5, 0), autograph=False)
    assert dynamic(tf.constant(1)).shape == (1,) and dynamic(tf.constant(7)).shape == (4,)


def test_an_own_loop_samples_by_itself():
    alignment = AdversarialAlignment(fraction=0.5, row_task="domain", schedule=1.0)
    gradients = {task: tf.random.normal([6, 3]) for task in LABELS}
    loss = alignment(gradients, {"buy": tf.ones(6, tf.bool)}, row_task=tf.constant([True] * 3 + [False] * 3),
                     update_metrics=True)  # fmt: skip
    assert float(loss) > 0
    assert float(tf.reduce_sum(tf.convert_to_tensor(alignment.accuracy.rows))) == 3.0


@pytest.mark.parametrize("arguments", [{"fraction": 0}, {"fraction": 1.5}, {"fraction": "half"}, {"every": 0},
                                       {"every": 1.5}, {"every": True}])  # fmt: skip
def test_wrong_arguments_are_quoted(arguments):
    with pytest.raises(UserError, match=rf"received {next(iter(arguments.values()))!r}"):
        AdversarialAlignment(**arguments)


def test_they_are_part_of_the_config():
    again = AdversarialAlignment.from_config(
        AdversarialAlignment(fraction=np.float32(0.5), every=np.int64(4)).get_config()
    )
    assert (again.fraction, again.every) == (0.5, 4)
