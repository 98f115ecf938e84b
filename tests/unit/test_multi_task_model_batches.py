"""Every kind of data, two replicas, and the check on the first batch, which leaves no trace."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import (
    TASKS,
    WIDTH,
    Batches,
    Subclassed,
    aligned,
    all_state,
    assert_same,
    data,
    discriminator,
    forever,
    functional,
    restart,
    unchecked,
)

# --- two replicas ---------------------------------------------------------------------------------------------------


def replicated(strategy, *, normalize, metrics, run_eagerly):
    """Two epochs of 8, 8 rows and a single one, labels missing unevenly, on one device or on the strategy's."""
    restart()
    x, y = data(17, missing=0.2)
    for start in range(0, 17, 8):
        y["buy"][start : start + 4][1:] = np.nan  # the first replica has one label of "buy" at most
    with strategy.scope() if strategy else tf.distribute.get_strategy().scope():
        base = functional(towers=False)
        model = aligned(base, normalize=normalize, weight=0.7, discriminator=keras.layers.Dense(2))
        model.compile(
            keras.optimizers.SGD(0.3),
            loss="binary_crossentropy",
            metrics=metrics,
            discriminator_optimizer=keras.optimizers.SGD(0.1),
            run_eagerly=run_eagerly,
        )
    history = model.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=8, return_dict=True, verbose=0) if metrics else {}
    return model, history, evaluated


# Each variable is a sum over replicas more to trace, so these are few. Metrics and evaluation do not know of the
# normalisation: with one of the two, which is traced.
@pytest.mark.usefixtures("no_first_batch_check")
@pytest.mark.parametrize(("normalize", "metrics"), [("batch", {"buy": ["AUC"]}), ("l2", None)])
def test_two_replicas_equal_one_device(mirrored_strategy, normalize, metrics, monkeypatch):
    settings = {"normalize": normalize, "metrics": metrics}
    one, one_history, one_evaluated = replicated(None, run_eagerly=True, **settings)
    traced, step = [], ga.MultiTaskModel.train_step
    monkeypatch.setattr(ga.MultiTaskModel, "train_step", lambda self, data: (traced.append(1), step(self, data))[1])
    traced_once = normalize == "batch"
    two, two_history, two_evaluated = replicated(mirrored_strategy, run_eagerly=not traced_once, **settings)
    if traced_once:
        assert len(traced) == 2  # once for each replica, with the first batch handed on by the check
    assert_same(one_history, two_history, rtol=1e-5, atol=1e-6)
    assert_same(one_evaluated, two_evaluated, rtol=1e-5, atol=1e-6)
    assert_same(all_state(one), all_state(two), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "aligns"), [("arrays", False), ("generator", True)])
def test_replicas_of_a_base_that_its_first_batch_builds(mirrored_strategy, kind, aligns):
    x, y = data(16)
    with mirrored_strategy.scope():
        alignment = ga.AdversarialAlignment(schedule=1.0, discriminator=discriminator()) if aligns else None
        model = ga.MultiTaskModel(Subclassed(towers=False), "norm", alignment)
        metrics = None if aligns else {"buy": ["accuracy"]}
        model.compile("sgd", loss="binary_crossentropy", metrics=metrics, run_eagerly=aligns)
    given = {"x": x, "y": y, "batch_size": 8} if kind == "arrays" else {"x": forever(x, y, 8), "steps_per_epoch": 2}
    history = model.fit(verbose=0, **given).history
    assert all(np.isfinite(values).all() for values in history.values())
    assert int(model.optimizer.iterations.numpy()) == 2


# --- kinds of data, and the check on the first batch ----------------------------------------------------------------


def ragged_base():
    ids = keras.Input((None,), name="ids", dtype="int32", ragged=True)
    x = keras.Input((WIDTH,), name="x")
    pooled = keras.layers.Lambda(lambda t: tf.reduce_mean(t, axis=1))(keras.layers.Embedding(5, 4)(ids))
    s = keras.layers.Dense(5, "tanh", name="encoder")(keras.layers.Concatenate()([pooled, x]))
    return keras.Model(
        {"ids": ids, "x": x},
        {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in TASKS},
    )


def state_after(source, base, metrics=None, **mode):
    restart()
    model = aligned(base(), discriminator=discriminator())
    model.compile(keras.optimizers.SGD(0.1), loss="binary_crossentropy", metrics=metrics, **mode)
    history = model.fit(verbose=0, **source).history
    return {**all_state(model), **{f"history {k}": v for k, v in history.items()}}


def without_check(monkeypatch, *arguments, **settings):
    """The state after training without the check on the first batch."""
    with monkeypatch.context() as patch:
        unchecked(patch)
        return state_after(*arguments, **settings)


def test_the_check_leaves_no_trace(monkeypatch):
    """The batches reach the step as they would without it: from each kind of data the same ones, the last smaller."""
    x, y = data(10, missing=0.2)
    weights = {"buy": np.linspace(0, 2, 10).astype("float32")}
    base, metrics = lambda: functional(normalize=True, dropout=0.4, towers=False), {"buy": ["mse"]}
    batches = Batches(x, y, [weights])
    arrays = {"x": x, "y": y, "sample_weight": weights, "batch_size": 6, "shuffle": False}
    expected = without_check(monkeypatch, arrays, base, metrics=metrics, run_eagerly=True)
    for source in (
        arrays,
        {"x": tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(6)},
        {"x": batches, "shuffle": False},
        {"x": (batches[number] for number in range(2))},
    ):
        assert_same(expected, state_after(source, base, metrics=metrics, run_eagerly=True), rtol=1e-6, atol=1e-7)


def test_the_check_leaves_no_trace_in_a_graph(monkeypatch):
    # Several steps at a time take several batches for the check: test_multi_task_model_modes.py.
    x, y = data(12, missing=0.2)
    source = lambda: {"x": forever(x, y), "steps_per_epoch": 2}  # noqa: E731
    base = lambda: Subclassed(dropout=0.4, towers=False)  # noqa: E731
    expected = without_check(monkeypatch, source(), base)
    assert_same(expected, state_after(source(), base), rtol=1e-6, atol=1e-7)


def test_ragged_inputs(monkeypatch):
    x, y = data(12, missing=0.2)
    ids = tf.ragged.constant([[i % 5] * (1 + i % 3) for i in range(12)], dtype=tf.int32)
    given = tf.data.Dataset.from_tensor_slices(({"ids": ids, "x": x["x"]}, y)).batch(6)
    expected = without_check(monkeypatch, {"x": given}, ragged_base, run_eagerly=True)
    assert_same(expected, state_after({"x": given}, ragged_base), rtol=1e-5, atol=1e-6)
