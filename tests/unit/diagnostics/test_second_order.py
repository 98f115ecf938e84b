"""`check_second_order` and the warning of `fit`: what is dead is said in words, what is alive is not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.diagnostics import norms_at_shared
from tests.unit.small_models import (
    TASKS,
    WIDTH,
    Subclassed,
    all_state,
    assert_same,
    data,
    functional,
    restart,
    warnings_of,
)
from tests.unit.small_models import aligned as aligned_by


def discriminator(*layers):
    return keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(2)])


def aligned(base, **settings):
    """With a small discriminator, through which a check passes many times; `None` asks for the default one."""
    if "discriminator" not in settings:
        settings["discriminator"] = discriminator(keras.layers.Dense(3, "tanh"))
    return aligned_by(base, **settings)


def compiled(model, loss="binary_crossentropy"):
    model.compile(keras.optimizers.SGD(0.1), loss=loss, run_eagerly=True)
    return model


def make(activation="gelu", *, normalize="batch", loss="binary_crossentropy", **settings):
    return compiled(aligned(functional(activation=activation), normalize=normalize, **settings), loss)


def batch(rows=16, **settings):
    x, y = data(rows, **settings)
    return {"x": tf.constant(x["x"])}, {task: tf.constant(label) for task, label in y.items()}


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_a_dead_path_is_said_in_words(activation):
    report = ga.check_second_order(make(activation, normalize="l2"), batch())
    assert not report.ok
    text = str(report)
    assert 'dead path: the alignment cannot reach the shared representation through tasks "click", "buy"' in text
    assert "gelu" in text and 'normalize="batch"' in text
    assert report.agrees is None
    for norms in report.tasks.values():
        assert norms.is_dead and norms.rows == 16 and norms.second <= 1e-6 * norms.first


@pytest.mark.parametrize(
    ("activation", "normalize"),
    [("gelu", "l2"), ("relu", "batch"), ("tanh", "none")],
)
def test_a_path_that_is_alive(activation, normalize):
    settings = {"discriminator": None} if normalize == "l2" else {}  # the default one
    report = ga.check_second_order(make(activation, normalize=normalize, **settings), batch())
    assert report.ok, str(report)
    assert report.agrees and report.difference < 0.05
    assert "All is well" in str(report)
    assert report.second_to_first > 1e-4


def test_one_dead_task_of_two():
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    outputs = {
        t: keras.layers.Dense(1, "sigmoid", name=t)(keras.layers.Dense(4, a)(s))
        for t, a in zip(TASKS, ("gelu", "relu"), strict=True)
    }
    model = compiled(aligned(keras.Model({"x": x}, outputs), normalize="l2"))
    report = norms_at_shared(model, batch())
    assert report.tasks["buy"].is_dead and not report.tasks["click"].is_dead
    assert 'through task "buy", because' in str(report)


def by_hand(model, x, y):
    """First- and second-order norms at the shared tensor, with plain tapes."""
    encoder = model.base.get_layer("encoder")
    model.alignment.schedule, model.alignment.weight = 1.0, 1.0
    with tf.GradientTape(persistent=True) as outer:
        s = encoder(x["x"])
        outer.watch(s)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(s)
            losses = {}
            for task in model.tasks:
                p = model.base.get_layer(task)(model.base.get_layer(f"tower_{task}")(s))[:, 0]
                label = y[task][:, 0]
                losses[task] = -(label * tf.math.log(p) + (1 - label) * tf.math.log(1 - p))
        gradients = {task: inner.gradient(loss, s) for task, loss in losses.items()}
        means = {task: tf.reduce_mean(loss) for task, loss in losses.items()}
        total = sum(means.values())
        alignment = model.alignment(gradients)
    first = {task: tf.norm(outer.gradient(mean, s)) for task, mean in means.items()}
    return first, tf.norm(outer.gradient(total, s)), tf.norm(outer.gradient(alignment, s))


def test_the_norms_by_hand():
    model = make()
    x, y = batch()
    quick, report = norms_at_shared(model, (x, y)), ga.check_second_order(model, (x, y))
    first, total, second = by_hand(model, x, y)
    for task in TASKS:
        np.testing.assert_allclose(report.tasks[task].first, first[task], rtol=1e-5)
    np.testing.assert_allclose(report.first, total, rtol=1e-5)
    np.testing.assert_allclose(report.second, second, rtol=1e-4)
    np.testing.assert_allclose(report.second_to_first, second / total, rtol=1e-4)
    # What goes through each task adds up to the whole, so no part exceeds it and the others together.
    parts = [report.tasks[task].second for task in TASKS]
    assert max(parts) <= report.second + min(parts) + 1e-9
    text = str(report)
    for number in (report.first, report.second, *parts):
        assert f"{number:.3e}" in text
    assert "Finite differences agree" in text
    # Without finite differences they are the same.
    assert quick.tasks == report.tasks and quick.second == report.second
    assert quick.agrees is None and quick.ok
    names = {v.path for v in [*model.base.trainable_variables, *model.alignment.trainable_variables]}
    assert set(report.variables) == names
    first, second = report.variables["encoder/kernel"]
    assert first > 0 and second > 0
    discriminator = model.alignment.trainable_variables[0].path
    assert report.variables[discriminator][0] == 0 and report.variables[discriminator][1] > 0
    assert "encoder/kernel" in str(report)


def tower_with(layer, activation="gelu"):
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    outputs = {}
    for task in TASKS:
        h = layer()(keras.layers.Dense(6, activation, name=f"tower_{task}")(s))
        outputs[task] = keras.layers.Dense(1, "sigmoid", name=task)(h)
    return keras.Model({"x": x}, outputs)


class Stopping(keras.layers.Layer):
    def call(self, x):
        return x * tf.stop_gradient(tf.nn.sigmoid(3.0 * x))


@pytest.mark.parametrize(
    ("layer", "normalize"),
    [(keras.layers.LayerNormalization, "l2"), (Stopping, "batch")],
    ids=["LayerNormalization", "stop_gradient"],
)
def test_a_wrong_second_order_is_caught(layer, normalize):
    report = ga.check_second_order(compiled(aligned(tower_with(layer), normalize=normalize)), batch(32))
    assert report.agrees is False and not report.ok, str(report)
    assert "DISAGREE" in str(report) and "LayerNormalization" in str(report)


def test_where_gradients_jump_a_deviation_decides_nothing():
    report = ga.check_second_order(compiled(aligned(tower_with(Stopping, "relu"), normalize="batch")), batch(32))
    assert report.agrees is None and report.jumps and report.difference > 0.02, str(report)
    assert "undecided" in str(report) and "All is well" not in str(report)


def test_a_gradient_below_the_rounding_of_the_loss_is_not_judged():
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Rescaling(1e-7, name="encoder")(keras.layers.Dense(5, "tanh")(x))
    base = keras.Model({"x": x}, {t: keras.layers.Dense(1, name=t)(keras.layers.Dense(4, "gelu")(s)) for t in TASKS})
    report = ga.check_second_order(compiled(aligned(base, normalize="none"), "mse"), batch())
    assert report.agrees is None and report.drowned, str(report)
    assert "too small beside the rounding" in str(report) and "All is well" not in str(report)


def test_bends_within_a_step_are_no_disagreement():
    # ReLU in the discriminator: A is piecewise smooth, and steps along its gradient cross many of its bends.
    own = discriminator(keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu"))
    report = ga.check_second_order(make(discriminator=own), batch())
    assert report.agrees, str(report)


def test_layers_that_are_right():
    both = lambda: keras.Sequential([keras.layers.RMSNormalization(), keras.layers.Dropout(0.3)])  # noqa: E731
    report = ga.check_second_order(compiled(aligned(tower_with(both))), batch(32))
    assert report.agrees, str(report)


@pytest.mark.parametrize("loss", ["hinge", "mae"])
def test_losses_without_curvature(loss):
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    base = keras.Model({"x": x}, {t: keras.layers.Dense(1, name=t)(keras.layers.Dense(4, "relu")(s)) for t in TASKS})
    report = norms_at_shared(compiled(aligned(base), loss), batch())
    assert not report.ok
    assert "dead path" in str(report) and "no curvature" in str(report) and "mean absolute error" in str(report)
    # A smooth tower revives it: J itself changes with s.
    base = keras.Model({"x": x}, {t: keras.layers.Dense(1, name=t)(keras.layers.Dense(4, "gelu")(s)) for t in TASKS})
    assert norms_at_shared(compiled(aligned(base), loss), batch()).ok


@pytest.mark.usefixtures("no_first_batch_check")
def test_the_model_is_not_changed():
    model = compiled(aligned(functional(normalize=True, dropout=0.3)))
    x, y = data(16)
    model.train_on_batch(x, y)
    before = all_state(model)
    assert ga.check_second_order(model, (x, y)).agrees, "each pass drops the same entries"
    assert_same(before, all_state(model), rtol=0, atol=0)


def test_a_subclassed_base_that_was_never_called():
    model, given = compiled(aligned(Subclassed(dropout=0.3))), data(16)
    report = ga.check_second_order(model, given)
    assert report.ok and report.agrees, str(report)
    before = all_state(model)
    again = norms_at_shared(model, given)
    assert_same(before, all_state(model), rtol=0, atol=0)
    assert (again.tasks, again.second) == (report.tasks, report.second)


WEIGHTS = {"buy": np.linspace(0, 2, 16).astype("float32")}


def without_labels(y, count):
    return {**y, "buy": np.where(np.arange(16)[:, None] < count, np.nan, y["buy"])}


def test_batches_of_every_kind():
    model, (x, y) = make(), data(16)
    for given, rows in (((x, y, None), 16), ((x, y, WEIGHTS), 15), ((x, without_labels(y, 10)), 6)):
        report = norms_at_shared(model, given)
        assert report.ok, str(report)
        assert (report.tasks["click"].rows, report.tasks["buy"].rows) == (16, rows)


def test_reach_shared_spares_the_towers_in_training_only():
    # The norms at the shared tensor are those that training sees there, whatever the reach.
    reports = []
    for reach in ("all", "shared"):
        restart()
        reports.append(norms_at_shared(make(reach=reach), batch()))
    for task in TASKS:
        assert reports[0].tasks[task].second == pytest.approx(reports[1].tasks[task].second, rel=1e-5)


def test_row_task():
    """With weights and labels that are missing, and the towers spared: the differences see the same rows."""
    model = compiled(aligned(functional(), row_task="which", reach="shared"))
    x, y = data(16)
    x["which"] = np.arange(16) % 4 == 3
    report = ga.check_second_order(model, (x, without_labels(y, 10), WEIGHTS))
    assert report.ok and report.agrees, str(report)
    assert (report.tasks["click"].rows, report.tasks["buy"].rows) == (4, 4)  # buy: of 10 to 15 without 11 and 15


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_rounding_of_half_floats_is_no_disagreement(policy):
    keras.config.set_dtype_policy(policy)
    report = ga.check_second_order(make(), batch())
    assert report.ok, str(report)
    assert report.agrees is None and "Finite differences were not taken" in str(report)


def test_nothing_to_align():
    x, y = data(8)
    nothing = {task: np.full_like(y[task], np.nan) for task in y}
    report = ga.check_second_order(make(), (x, nothing))
    assert report.sentences() == [
        "No task has a labelled row with a gradient in this batch, so there is nothing to align."
    ]
    assert report.second_to_first == 0.0


def test_one_task():
    model = compiled(aligned(functional(), tasks=["buy"], discriminator=None))
    report = norms_at_shared(model, data(8))
    assert not report.ok
    assert "dead path" not in str(report)
    assert 'one task, "buy"' in str(report)


def test_what_is_refused():
    with pytest.raises(ga.UserError, match="this model has none"):
        ga.check_second_order(functional(), data(8))
    with pytest.raises(ga.UserError, match="needs a compiled model"):
        ga.check_second_order(aligned(functional()), data(8))


# --- fit says it once -----------------------------------------------------------------------------------------------


def test_fit_warns_once_for_each_model():
    x, y = data(16)
    model = make("relu", normalize="l2")

    def fit_again_and_again():
        model.fit(x, y, batch_size=8, verbose=0)
        model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
        model.fit(x, y, verbose=0)

    [message] = warnings_of(fit_again_and_again)
    assert "dead path" in message and "gelu" in message
    # Another model is another warning.
    again = make("relu", normalize="l2")
    assert warnings_of(lambda: again.fit(x, y, verbose=0)) == [message]


def test_fit_is_quiet_where_all_is_well():
    x, y = data(16, missing=0.2)
    model = make("relu")
    assert warnings_of(lambda: model.fit(x, y, verbose=0)) == []


# --- the discriminator's side -----------------------------------------------------------------------------------------


def test_a_reversal_that_does_not_reverse(monkeypatch):
    monkeypatch.setattr("gradalign.alignment.adversarial.reverse_gradient", lambda x, strength: tf.identity(x))
    report = ga.check_second_order(make(), batch())
    assert report.reverses is False and not report.ok
    assert "The reversal does not reverse" in str(report) and "stops gradients" not in str(report)


@pytest.mark.parametrize("missing", [0.0, 0.3], ids=["all labelled", "some unlabelled"])
def test_a_discriminator_that_mixes_rows(missing):
    given = batch(missing=missing)
    mixing = discriminator(keras.layers.Dense(4), keras.layers.BatchNormalization())
    report = norms_at_shared(make(discriminator=mixing), given)
    assert report.mixes_rows and "The discriminator mixes rows" in str(report)


def test_a_discriminator_that_sees_each_row_alone():
    alone = discriminator(keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.5), keras.layers.LayerNormalization())
    assert not norms_at_shared(make(discriminator=alone), batch(missing=0.3)).mixes_rows


def test_what_the_labels_give_away():
    x, _ = batch(8)
    labels = {"click": [1, 1, 1, 1, 1, 1, 0, 0], "buy": [1, 0, 0, 0, np.nan, np.nan, np.nan, np.nan]}
    report = norms_at_shared(make(), (x, {t: tf.constant(y, tf.float32)[:, None] for t, y in labels.items()}))
    # Three quarters of the clicks are positive and a quarter of the purchases: a positive row is named "click".
    assert report.leak.positives == {"click": 0.75, "buy": 0.25}
    assert report.leak.accuracy == pytest.approx((0.75 + 0.75) / 2) and report.leak.chance == 0.5
    assert "Label leak" in str(report) and "right in 0.750 of the rows" in str(report)
    assert report.ok


def test_a_saturated_discriminator_is_no_loss_without_curvature():
    """Two tasks whose gradients a discriminator with huge logits tells apart for sure: its loss hands nothing back."""
    base = functional()
    base.get_layer("tower_buy").set_weights(base.get_layer("tower_click").get_weights())
    kernel, bias = base.get_layer("click").get_weights()
    base.get_layer("buy").set_weights([kernel, bias])
    sure = discriminator()
    model = compiled(aligned(base, normalize="batch", discriminator=sure))
    x, _ = batch()
    y = {"click": tf.ones([16, 1]), "buy": tf.zeros([16, 1])}  # gradients of opposite sign in every row
    rows = model.alignment.rows_of(
        model.task_gradients_of(model.forward((x, y), training=True, aligned=True))
    ).gradients
    direction = tf.reduce_mean(rows[0] - rows[1], axis=0)
    assert (
        float(tf.reduce_min(tf.linalg.matvec(rows[0], direction)))
        > 0
        > float(tf.reduce_max(tf.linalg.matvec(rows[1], direction)))
    )
    sure.layers[-1].set_weights([np.stack([1e4 * direction, -1e4 * direction], axis=1), np.zeros(2)])
    report = norms_at_shared(model, (x, y))
    assert all(norms.is_dead and norms.bends for norms in report.tasks.values())
    assert "the discriminator is saturated" in str(report) and "no curvature" not in str(report)
