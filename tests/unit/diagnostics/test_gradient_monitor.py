"""The gradient monitor: figures by hand, a model that stays as it is, when it looks and what it writes."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.alignment import CosineAlignment
from gradalign.callbacks import GradientMonitor
from tests.unit.small_models import (
    Subclassed,
    aligned,
    all_state,
    assert_same,
    data,
    discriminator,
    functional,
    restart,
)

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

HEADS = {"click": np.array([1.0, 2.0]), "buy": np.array([2.0, 1.0])}
X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [-1.0, 1.0]])
# Row 1 has no label for buy and no gradient of click (2 is what it predicts), row 4 none for click.
Y = {"click": np.array([0.0, 2.0, 4.0, 5.0, np.nan]), "buy": np.array([3.0, np.nan, 1.0, 6.0, 0.0])}
KERNEL = np.array([[0.3, -0.2], [-0.1, 0.4]])  # of the discriminator
LABELLED = {task: ~np.isnan(y) for task, y in Y.items()}


def linear(alignment=None, *, shared="encoder", **compile_arguments):
    """s = x, one linear head a task, squared error: g = 2 (w s - y) w."""
    x = keras.Input((2,), name="x")
    s = keras.layers.Dense(2, use_bias=False, kernel_initializer="identity", name="encoder")(x)
    outputs = {}
    for task, kernel in HEADS.items():
        head = keras.layers.Dense(1, use_bias=False, name=task)
        outputs[task] = head(s)
        head.set_weights([kernel[:, None]])
    model = ga.MultiTaskModel(keras.Model({"x": x}, outputs), shared, alignment)
    model.compile("sgd", loss="mse", **{"run_eagerly": True, **compile_arguments})
    return model


def adversarial(**settings):
    own = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, name="logits")])
    own.layers[-1].set_weights([KERNEL])
    return ga.AdversarialAlignment(0.5, discriminator=own, normalize="none", schedule=1.0, **settings)


def look(model, given, **settings):
    monitor = GradientMonitor(given, **settings)
    monitor.set_model(model)
    monitor.on_train_begin()
    logs = {}
    monitor.on_epoch_begin(0)
    monitor.on_epoch_end(0, logs)
    return logs


def gradients():
    """{task: (rows, 2)}, 0 where there is no label."""
    residuals = {task: np.nan_to_num(X @ w - Y[task]) for task, w in HEADS.items()}
    return {task: 2.0 * residuals[task][:, None] * w for task, w in HEADS.items()}


def expected_of_tasks():
    g = gradients()
    found = {f"{t}_gradient_norm": np.sqrt((g[t][LABELLED[t]] ** 2).sum(1).mean()) for t in HEADS}
    both = [i for i in range(5) if all(np.any(g[t][i]) for t in HEADS)]
    assert both == [0, 2, 3]
    cosines = [np.sign(g["click"][i] @ g["buy"][i]) * 0.8 for i in both]  # of the heads: 4 / 5
    return {
        **found,
        "click_buy_gradient_cosine": np.mean(cosines),
        "click_buy_conflicting_rows": np.mean(np.array(cosines) < 0),
    }


def expected_of_alignment(own, *, weights=(1.0, 1.0)):
    """`own`: the rows whose own task it is, by task."""
    g, at_shared, by_task, sign = gradients(), np.zeros((5, 2)), {}, {}
    for t, (task, w) in enumerate(HEADS.items()):
        kept = [i for i in range(5) if np.any(g[task][i]) and own[task][i]]
        logits = g[task] @ KERNEL
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        by_task[f"{task}_discriminator_accuracy"] = np.mean([p[i].argmax() == t for i in kept])
        by_task[f"{task}_discriminator_cross_entropy"] = np.mean([-np.log(p[i, t]) for i in kept])
        sign[task] = np.mean([w @ X[i] < Y[task][i] for i in kept])
        for i in kept:
            # d CE / dg, then dg / ds = 2 w w'
            at_shared[i] += 2.0 * w * (w @ (KERNEL @ (p[i] - np.eye(2)[t]))) / len(kept) / 2.0
    first = sum(c * g[t] / LABELLED[t].sum() for c, t in zip(weights, HEADS, strict=True))
    ratio = np.linalg.norm(at_shared) / np.linalg.norm(first)
    return {
        **by_task,
        "discriminator_chance": 0.5,
        "discriminator_label_aware_chance": (1.0 + abs(sign["click"] - sign["buy"])) / 2.0,
        "second_to_first_order_ratio": ratio,
        "second_to_first_order_ratio_at_strength": 0.5 * ratio,
        "alignment_share": 0.5 * ratio / (1.0 + 0.5 * ratio),
        "alignment_strength": 0.5,
    }


def test_figures_of_the_tasks_by_hand():
    expected = expected_of_tasks()
    assert 0.0 < expected["click_buy_conflicting_rows"] < 1.0
    assert look(linear(), ({"x": X}, Y)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("with_row_task", [False, True])
def test_figures_of_an_adversary_by_hand(with_row_task):
    own = {task: np.ones(5, bool) for task in HEADS}
    x, settings = {"x": X}, {}
    if with_row_task:
        own = {"click": np.array([1, 0, 0, 1, 1], bool), "buy": np.array([0, 1, 1, 0, 0], bool)}
        x["which"], settings = own["click"], {"row_task": "which"}
    model = linear(adversarial(**settings), loss_weights={"click": 3.0})
    expected = {**expected_of_tasks(), **expected_of_alignment(own, weights=(3.0, 1.0))}
    assert look(model, (x, Y)) == pytest.approx(expected, rel=1e-5)


def test_what_a_sign_or_a_balance_takes_away_the_labels_no_longer_tell():
    positive = {"click": [1, 1, 1, 0, 0], "buy": [1, 0, 0, 0, 0]}
    y = {task: np.where(of_task, 100.0, -100.0) for task, of_task in positive.items()}
    for settings, chance in (({}, (1.0 + 0.6 - 0.2) / 2), ({"sign_free": True}, 0.5), ({"balance_labels": True}, 0.5)):
        found = look(linear(adversarial(**settings)), ({"x": X}, y))
        assert found["discriminator_label_aware_chance"] == pytest.approx(chance)


def test_several_shared_tensors_are_one():
    """At two tensors and at the one that joins them: the same figures."""
    x, given = keras.Input((6,), name="x"), data(8, missing=0.2)
    parts = [keras.layers.Dense(2, "tanh", name=name)(x) for name in ("left", "right")]
    s = keras.layers.Concatenate(name="joined")(parts)
    base = keras.Model({"x": x}, {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in HEADS})
    found = []
    for shared in ("joined", ["left", "right"]):
        restart()
        model = aligned(base, shared=shared, discriminator=discriminator(4))
        model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
        found.append(look(model, given))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_positions_are_compared_each():
    """Cosines of each position; a gradient's norm is that of the whole row."""
    x = keras.Input((2, 2), name="x")
    s = keras.layers.Dense(2, use_bias=False, kernel_initializer="identity", name="encoder")(x)
    kernels = {"click": np.array([1.0, 0.0, 1.0, 0.0]), "buy": np.array([1.0, 0.0, 0.0, 2.0])}
    outputs = {}
    for task, kernel in kernels.items():
        head = keras.layers.Dense(1, use_bias=False, name=task)
        outputs[task] = head(keras.layers.Flatten()(s))
        head.set_weights([kernel[:, None]])
    model = ga.MultiTaskModel(
        keras.Model({"x": x}, outputs), "encoder", ga.AdversarialAlignment(schedule=1.0, per="position")
    )
    model.compile("sgd", loss="mse", run_eagerly=True)
    rows = np.random.default_rng(0).normal(size=(4, 2, 2)).astype("float32")
    found = look(model, ({"x": rows}, {task: np.full(4, 9.0) for task in HEADS}))
    residual = rows.reshape(4, 4) @ kernels["buy"] - 9.0
    assert found["buy_gradient_norm"] == pytest.approx(2.0 * np.sqrt(5.0 * np.mean(residual**2)), rel=1e-5)
    # The same way at the first position, at right angles at the second.
    assert found["click_buy_gradient_cosine"] == pytest.approx(0.5, abs=1e-6)
    assert found["click_buy_conflicting_rows"] == 0.0


def test_without_a_discriminator_there_is_nothing_of_one():
    names = {"second_to_first_order_ratio", "second_to_first_order_ratio_at_strength"}
    names |= {"alignment_share", "alignment_strength"}
    assert set(look(linear(CosineAlignment(0.1, schedule=1.0)), ({"x": X}, Y))) == {*expected_of_tasks(), *names}


def test_training_is_the_same_with_and_without():
    """Weights, moving statistics, seeds of dropout, the discriminator's state, metrics, both optimizers."""
    x, y = data(12, missing=0.2)
    found = []
    for watched in (False, True):
        restart()
        own = keras.Sequential([keras.Input((5,)), keras.layers.Dropout(0.3), keras.layers.Dense(2)])
        model = aligned(Subclassed(dropout=0.4, towers=False), discriminator=own)
        model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
        monitor = GradientMonitor((x, y), every=1)
        callbacks = [monitor] if watched else []
        history = model.fit(x, y, batch_size=6, callbacks=callbacks, verbose=0).history
        found.append(({name: history[name] for name in ("loss", "discriminator_accuracy")}, all_state(model)))
    assert [look["step"] for look in monitor.history] == [1, 2]
    assert found[0][0] == found[1][0]
    assert_same(found[1][1], found[0][1], rtol=0, atol=0)


def test_one_trace_follows_weights_strength_and_damping():
    """In a graph, with a spectral norm, whose direction would move; the figures are those of an eager look."""
    model = aligned(functional(), schedule="linear", total_steps=4, spectral_norm=True)
    model.compile("sgd", loss="binary_crossentropy", jit_compile=False)
    monitor = GradientMonitor(data(8, missing=0.2))
    monitor.set_model(model)
    monitor.on_train_begin()
    before = all_state(model)
    monitor._take_a_look()
    assert_same(all_state(model), before, rtol=0, atol=0)
    for _ in range(3):
        model.alignment.advance()
        kernel = model.base.get_layer("encoder").kernel
        kernel.assign(kernel * 1.5)
        model.alignment.damping.assign(0.5)
        monitor._take_a_look()
    assert monitor._look._run.experimental_get_tracing_count() == 1
    norms = [found["click_gradient_norm"] for found in monitor.history]
    assert len(set(norms)) == 4
    assert [found["alignment_strength"] for found in monitor.history] == pytest.approx([0.0, 0.0625, 0.125, 0.1875])
    assert monitor.history[0]["alignment_share"] == 0.0 < monitor.history[1]["alignment_share"]
    model.run_eagerly = True
    assert look(model, data(8, missing=0.2)) == pytest.approx(
        {name: value for name, value in monitor.history[-1].items() if name != "step"}, rel=1e-4
    )


def test_on_replicas_it_looks_on_one_device(mirrored_strategy):
    """Called within the strategy's scope or outside of it."""
    given = ({"x": X}, Y)
    with mirrored_strategy.scope():
        model = linear(adversarial(), run_eagerly=False, jit_compile=False)
        inside = look(model, given)
    model.run_eagerly = True
    expected = look(linear(adversarial()), given)
    assert inside == pytest.approx(expected, rel=1e-5) and look(model, given) == pytest.approx(expected, rel=1e-5)


def test_float16_keeps_a_small_gradient():
    keras.config.set_dtype_policy("mixed_float16")
    given = data(600)
    half = look(_compiled(aligned(functional(), discriminator=discriminator())), given)
    keras.config.set_dtype_policy("float32")
    restart(0)
    full = look(_compiled(aligned(functional(), discriminator=discriminator())), given)
    assert half == pytest.approx(full, rel=0.05, abs=0.05) and half["second_to_first_order_ratio"] > 0


def _compiled(model):
    model.compile("sgd", loss="binary_crossentropy", run_eagerly=True)
    return model


# --- when it looks, and what is written -------------------------------------------------------------------------------


def counted(monkeypatch, every, epochs):
    """The batches after which a monitor looks, by epoch; `epochs` are the ends of what runs between two callbacks."""
    monitor = GradientMonitor(({"x": X}, Y), every=every)
    found, done = [], [0]
    monkeypatch.setattr(monitor, "_take_a_look", lambda: (found[-1].append(done[0]), monitor._in_epoch.append({})))
    for number, ends in enumerate(epochs):
        found.append([])
        monitor.on_epoch_begin(number)
        for end in ends:
            done[0] = end
            monitor.on_train_batch_end(end - 1)
        monitor.on_epoch_end(number, {})
    return found


def test_it_looks_every_so_many_batches_and_once_in_a_short_epoch(monkeypatch):
    assert counted(monkeypatch, 3, [range(1, 8), range(1, 3), range(1, 4)]) == [[3, 6], [2], [3]]
    # With several steps an execution, as soon as control is back.
    assert counted(monkeypatch, 3, [(2, 4, 6, 7), (8,)]) == [[4, 6], [8]]


def test_logs_are_means_and_history_has_every_look(tmp_path):
    model, given = linear(adversarial()), ({"x": X}, Y)
    monitor = GradientMonitor(given, every=1, prefix="val_")
    logger = keras.callbacks.CSVLogger(tmp_path / "epochs.csv")
    history = model.fit(*given, batch_size=3, callbacks=[monitor, logger], verbose=0).history
    norms = [found["buy_gradient_norm"] for found in monitor.history]
    assert history["val_buy_gradient_norm"] == pytest.approx([np.mean(norms)])
    with (tmp_path / "epochs.csv").open() as file:
        assert float(next(csv.DictReader(file))["val_alignment_strength"]) == 0.5
    monitor.write_csv(tmp_path / "deep" / "looks.csv")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["looks.csv"]
    with (tmp_path / "deep" / "looks.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == monitor.history and [row["step"] for row in rows] == [1, 2]
    with pytest.raises(ga.UserError, match='have "val_click_gradient_norm" already'):
        monitor.on_epoch_end(2, {"val_click_gradient_norm": 1.0})  # of another monitor


def test_the_rows_are_drawn_once_by_seed():
    x, y = data(50)
    one, same, other = (GradientMonitor((x, y, y), rows=5, seed=seed)._batch for seed in (1, 1, 2))
    assert all(len(part) == 5 for part in tf.nest.flatten(one))
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(same), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (one[0]["x"].numpy() != other[0]["x"].numpy()).any()
    assert len(GradientMonitor((x, y), rows=1000)._batch[0]["x"]) == 50


def test_a_task_without_a_label_among_the_rows_is_named():
    y = {**Y, "buy": np.full(5, np.nan)}
    with pytest.warns(ga.GradAlignWarning, match='Task "buy" has no label among the 5 rows'):
        found = look(linear(adversarial()), ({"x": X}, y))
    expected = expected_of_tasks()["click_gradient_norm"]
    assert found["click_gradient_norm"] == pytest.approx(expected, rel=1e-5)
    names = ("buy_gradient_norm", "click_buy_gradient_cosine", "click_buy_conflicting_rows")
    assert all(np.isnan(found[name]) for name in (*names, "buy_discriminator_accuracy"))
    assert np.isfinite(found["alignment_share"]) and np.isfinite(found["discriminator_label_aware_chance"])


def test_wrong_uses_are_said():
    given = ({"x": X}, Y)
    for name in ("every", "rows"):
        with pytest.raises(ga.UserError, match=f"{name} is a whole number, 1 or more; received 0"):
            GradientMonitor(given, **{name: 0})
    with pytest.raises(ga.UserError, match="no labels"):
        GradientMonitor({"x": X})
    with pytest.raises(ga.UserError, match="the data is empty"):
        GradientMonitor(({"x": X[:0]}, {task: y[:0] for task, y in Y.items()}))
    with pytest.raises(ga.UserError, match="knows where the shared tensor is"):
        look(linear(shared=None), given)
