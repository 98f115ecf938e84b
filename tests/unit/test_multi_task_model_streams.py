"""Labels that come unevenly: streams of one task each, tasks that pause for an epoch, single classes, single rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import all_state, assert_same, data, functional, restart

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

TASKS = ("click", "cart", "buy")
NAN = np.nan


def compiled(normalize, *, rate=0.1, eager=True, metrics=None):
    restart()
    alignment = normalize and ga.AdversarialAlignment(0.5, schedule=1.0, normalize=normalize)
    model = ga.MultiTaskModel(functional(TASKS), "encoder", alignment)
    model.compile(keras.optimizers.SGD(rate), loss="binary_crossentropy", metrics=metrics, run_eagerly=eager)
    return model


def only(y, task):
    """The labels of one task, NaN for all others."""
    return {other: y[other] if other == task else np.full_like(y[other], NAN) for other in y}


def changed(before, after):
    return {name for name in before if not np.array_equal(before[name], after[name])}


def row_losses(label, p):
    return -(label * np.log(p) + (1 - label) * np.log(1 - p))


@pytest.mark.parametrize("normalize", ["batch", "l2"])
def test_rows_missing_every_label_are_as_if_they_were_not_there(normalize):
    x, y = data(8, tasks=TASKS, missing=0.2)
    empty = np.array([1, 4, 7])
    for label in y.values():
        label[empty] = NAN
    kept = np.setdiff1d(np.arange(8), empty)
    results = []
    for rows in (np.arange(8), kept):
        model = compiled(normalize)
        labels = {task: label[rows] for task, label in y.items()}
        logs = model.train_on_batch({"x": x["x"][rows]}, labels, return_dict=True)
        results.append((logs, all_state(model)))
    assert_same(results[0][1], results[1][1], rtol=1e-5, atol=1e-7)
    assert results[0][0].keys() == results[1][0].keys()
    for key, values in results[0][0].items():
        assert values == pytest.approx(results[1][0][key], rel=1e-5), key


@pytest.mark.parametrize("normalize", ["batch", "l2"])
def test_one_batch_of_a_stream_by_hand(normalize):
    """Only the labelled task's tower moves; the discriminator takes its step on that task's rows alone."""
    x, y = data(6, tasks=TASKS)
    model = compiled(normalize, rate=0.1)
    discriminator, alignment = model.alignment.discriminator, model.alignment
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            s = model.base.get_layer("encoder")(x["x"])
            inner.watch(s)
            p = model.base.get_layer("cart")(model.base.get_layer("tower_cart")(s))
            label = y["cart"]
            loss = -tf.reduce_sum(label * tf.math.log(p) + (1 - label) * tf.math.log(1 - p))
        g = inner.gradient(loss, s)
        length = tf.norm(g, axis=1, keepdims=True)
        q = g / (length if normalize == "l2" else tf.sqrt(tf.reduce_mean(length**2)))
        ce = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=np.full(6, 1), logits=discriminator(q))
        )
    gradients = outer.gradient(ce, discriminator.trainable_variables)
    expected = [v.numpy() - 1.0 * g.numpy() for v, g in zip(discriminator.trainable_variables, gradients, strict=True)]
    before = all_state(model)
    logs = model.train_on_batch(x, only(y, "cart"), return_dict=True)
    assert logs["alignment_loss"] == pytest.approx(float(ce), rel=1e-5)
    assert logs["cart_loss"] == pytest.approx(float(loss) / 6, rel=1e-5)
    # The default optimizer of the discriminator has ten times the model's rate.
    for variable, value in zip(alignment.discriminator.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-4, atol=1e-6)
    moved = {name.split("/")[1] for name in changed(before, all_state(model)) if name.startswith("base/")}
    assert moved == {"encoder", "tower_cart", "cart"}


@pytest.mark.parametrize("normalize", ["batch", "l2"])
def test_streams_of_one_task_each(normalize):
    """Three streams in turn, as a data set whose batches each have the labels of one task; compiled, two epochs."""
    x, y = data(36, tasks=TASKS, missing=0.1)
    batches = []
    for number in range(6):
        rows = slice(6 * number, 6 * number + 6)
        labels = {task: label[rows] for task, label in y.items()}
        batches.append(({"x": x["x"][rows]}, only(labels, TASKS[number % 3])))
    stacked = tf.nest.map_structure(lambda *parts: np.stack(parts), *batches)
    streams = tf.data.Dataset.from_tensor_slices(stacked)
    model = compiled(normalize, rate=0.0, eager=False, metrics={"cart": ["accuracy"]})
    predictions = {task: p.numpy() for task, p in model.base(x).items()}
    model.discriminator_optimizer.learning_rate.assign(0.05)
    before = all_state(model)
    history = model.fit(streams, epochs=2, verbose=0, validation_data=streams).history
    for number, task in enumerate(TASKS):
        rows = np.concatenate([np.arange(6 * n, 6 * n + 6) for n in (number, number + 3)])
        label, p = y[task][rows], predictions[task][rows]
        kept = ~np.isnan(label)
        expected = row_losses(label[kept], p[kept]).mean()
        assert history[f"{task}_loss"] == pytest.approx([expected] * 2, rel=1e-5)
        assert history[f"val_{task}_loss"] == pytest.approx([expected] * 2, rel=1e-5)
        if task == "cart":
            assert history["cart_accuracy"] == pytest.approx([((p > 0.5) == label)[kept].mean()] * 2)
    assert all(np.isfinite(values).all() for values in history.values())
    after = all_state(model)
    assert all(np.isfinite(values).all() for values in after.values())
    assert any("discriminator/dense/kernel" in name for name in changed(before, after))
    assert int(model.alignment.step) == 12


def test_a_task_that_pauses_for_an_epoch():
    x, y = data(12, tasks=TASKS)
    model = compiled("batch")
    before = all_state(model)
    paused = {**y, "buy": np.full_like(y["buy"], NAN)}
    first = model.fit(x, paused, batch_size=6, verbose=0, validation_data=(x, paused)).history
    assert first["buy_loss"] == first["val_buy_loss"] == [0.0]
    moved = {name.split("/")[1] for name in changed(before, all_state(model)) if name.startswith("base/")}
    assert moved == {"encoder", "tower_click", "click", "tower_cart", "cart"}
    # With labels again it goes on where it stopped.
    predictions = model.base(x)["buy"].numpy()
    second = model.evaluate(x, y, verbose=0, return_dict=True)
    assert second["buy_loss"] == pytest.approx(row_losses(y["buy"], predictions).mean(), rel=1e-5)
    third = model.fit(x, y, batch_size=12, verbose=0).history
    for logs in (first, third):
        assert all(np.isfinite(values).all() for values in logs.values())
    assert not np.array_equal(model.base(x)["buy"], predictions)
    assert all(np.isfinite(value).all() for value in all_state(model).values())


def test_batches_of_a_single_class_and_of_a_single_row():
    """Labels sorted by class, and a last batch of one row that has one label only."""
    x, y = data(9, tasks=TASKS)
    y = {task: np.sort(label, axis=0) for task, label in y.items()}
    y["click"][:4], y["cart"][:], y["buy"][:] = 0.0, 1.0, 0.0
    y["click"][8] = y["buy"][8] = NAN
    model = compiled("l2", rate=0.0, metrics={"cart": ["AUC"]})
    predictions = {task: p.numpy() for task, p in model.base(x).items()}
    model.discriminator_optimizer.learning_rate.assign(0.1)
    history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
    for task in TASKS:
        kept = ~np.isnan(y[task])
        expected = row_losses(y[task][kept], predictions[task][kept]).mean()
        assert history[f"{task}_loss"] == pytest.approx([expected], rel=1e-5)
    assert all(np.isfinite(values).all() for values in history.values())
    assert all(np.isfinite(value).all() for value in all_state(model).values())


def test_a_single_row_is_one_thing_to_both_normalisations():
    """With "l2" and "batch" alike its gradient has length 1."""
    x, y = data(1, tasks=TASKS)
    losses = []
    for normalize in ("batch", "l2"):
        model = compiled(normalize)
        losses.append(model.train_on_batch(x, only(y, "buy"), return_dict=True)["alignment_loss"])
        assert all(np.isfinite(value).all() for value in all_state(model).values())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] > 0.1
