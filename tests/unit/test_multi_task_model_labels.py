"""Missing labels, sample weights and what is refused: every expected number is computed here by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import Subclassed, aligned, data, functional

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

NAN = np.nan


def compiled(base=None, alignment=None, *, rate=0.0, shared="encoder", **arguments):
    model = ga.MultiTaskModel(base or functional(towers=False), shared, alignment)
    arguments = {"loss": "binary_crossentropy", "run_eagerly": True, **arguments}
    model.compile(keras.optimizers.SGD(rate), **arguments)
    return model


def row_losses(label, prediction):
    label, prediction = np.ravel(label).astype("float64"), np.ravel(prediction).astype("float64")
    return -(label * np.log(prediction) + (1 - label) * np.log(1 - prediction))


def mean(label, prediction, weight=None):
    """Weighted mean over the rows that have a label."""
    label = np.ravel(label)
    weight = np.ones(len(label)) if weight is None else np.ravel(weight)
    kept = ~np.isnan(label) & (weight != 0)
    losses = row_losses(label[kept], np.ravel(prediction)[kept])
    return np.sum(losses * weight[kept]) / np.sum(weight[kept]) if kept.any() else 0.0


def test_history_is_the_exact_mean_over_labelled_rows():
    # Batches of 8, 8 and 4 rows with different numbers of labels; a rate of 0 keeps the predictions.
    x, y = data(20, missing=0.4)
    model = compiled(loss_weights={"click": 1.0, "buy": 0.5})
    predictions = {task: p.numpy() for task, p in model(x).items()}
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, validation_data=(x, y)).history
    for task in y:
        expected = mean(y[task], predictions[task])
        assert history[f"{task}_loss"][0] == pytest.approx(expected, rel=1e-5)
        assert history[f"val_{task}_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert history["val_loss"][0] == pytest.approx(
        mean(y["click"], predictions["click"]) + 0.5 * mean(y["buy"], predictions["buy"]), rel=1e-5
    )
    # `loss` is the mean of what was minimised, batch by batch, by rows.
    total = 0.0
    for start in (0, 8, 16):
        rows = slice(start, start + 8)
        batch = {task: mean(y[task][rows], predictions[task][rows]) for task in y}
        total += min(8, 20 - start) * (batch["click"] + 0.5 * batch["buy"])
    assert history["loss"][0] == pytest.approx(total / 20, rel=1e-5)


def test_evaluation_does_not_depend_on_the_batch_size():
    x, y = data(21, missing=0.4)
    model = compiled(metrics={"buy": ["AUC"]})
    whole = model.evaluate(x, y, batch_size=21, return_dict=True, verbose=0)
    parts = model.evaluate(x, y, batch_size=4, return_dict=True, verbose=0)
    assert whole.keys() == parts.keys()
    for key in whole:
        assert whole[key] == pytest.approx(parts[key], rel=1e-5), key


def by_hand(base, x, y, weights=None, *, rate=0.5):
    """The trainable weights after one step of SGD on the sum of task losses over labelled rows."""
    with tf.GradientTape() as tape:
        total = 0.0
        for task, prediction in base(x, training=True).items():
            label = np.ravel(y[task]).astype("float32")
            weight = np.ones_like(label) if weights is None or task not in weights else np.ravel(weights[task])
            rows = np.flatnonzero(~np.isnan(label) & (weight != 0))
            if len(rows):
                label, weight, p = label[rows], weight[rows].astype("float32"), tf.gather(prediction[:, 0], rows)
                losses = -(label * tf.math.log(p) + (1 - label) * tf.math.log(1 - p))
                total += tf.reduce_sum(losses * weight) / np.sum(weight)
    gradients = tape.gradient(total, base.trainable_variables)
    return [
        v.numpy() - rate * (0 if g is None else g) for v, g in zip(base.trainable_variables, gradients, strict=True)
    ]


WEIGHTS = {"buy": np.array([0.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.0, 0.25], "float32")}


@pytest.mark.parametrize(
    ("column", "kind", "missing", "weights"),
    [
        (True, "arrays", 0.5, None),
        (False, "data set", 0.5, None),
        (False, "arrays", 0.0, WEIGHTS),
        (True, "data set", 0.4, WEIGHTS),
        (False, "data set", 0.4, {"buy": WEIGHTS["buy"][:, None]}),
        (True, "arrays", 0.4, {}),
    ],
    ids=["NaN", "NaN (B,)", "zero weights", "both", "weights (B, 1)", "no weights"],
)
def test_the_update_by_hand(column, kind, missing, weights):
    x, y = data(8, missing=missing, column=column)
    model = compiled(rate=0.5)
    expected = by_hand(model.base, x, y, weights)
    if kind == "arrays":
        model.fit(x, y, sample_weight=weights, batch_size=8, verbose=0)
    else:
        model.fit(tf.data.Dataset.from_tensors((x, y) if weights is None else (x, y, weights)), verbose=0)
    for variable, value in zip(model.base.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-5, atol=1e-6)


def test_one_array_of_weights_is_for_all_tasks():
    x, y = data(8, missing=0.3)
    weights = WEIGHTS["buy"]
    model = compiled(rate=0.5)
    expected = by_hand(model.base, x, y, dict.fromkeys(y, weights))
    model.fit(x, y, sample_weight=weights, batch_size=8, verbose=0, shuffle=False)
    for variable, value in zip(model.base.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-5, atol=1e-6)


def test_weighted_history():
    x, y = data(8, missing=0.3)
    model = compiled()
    predictions = {task: p.numpy() for task, p in model(x).items()}
    history = model.fit(x, y, sample_weight=WEIGHTS, batch_size=3, verbose=0).history
    assert history["buy_loss"][0] == pytest.approx(mean(y["buy"], predictions["buy"], WEIGHTS["buy"]), rel=1e-5)
    assert history["click_loss"][0] == pytest.approx(mean(y["click"], predictions["click"]), rel=1e-5)


@pytest.mark.parametrize(
    ("alignment", "how"), [(None, "zero weights"), ("batch", "NaN"), ("l2", "zero weights"), ("l2", "NaN")]
)
def test_a_batch_without_labels_of_a_task(how, alignment):
    x, y = data(16)
    weights = None
    if how == "NaN":
        y["buy"][:8] = NAN
        y["click"][8:] = NAN
    else:
        weights = {"buy": np.repeat([0.0, 1.0], 8).astype("float32")}
    alignment = alignment and ga.AdversarialAlignment(0.5, schedule=1.0, normalize=alignment)
    model = compiled(functional(normalize=True, dropout=0.2), alignment, rate=0.1, metrics={"buy": ["AUC", "accuracy"]})
    history = model.fit(x, y, sample_weight=weights, batch_size=8, shuffle=False, verbose=0).history
    assert all(np.isfinite(values).all() for values in history.values())
    assert all(np.isfinite(v.value).all() for v in model.variables)


@pytest.mark.first_batch_check
@pytest.mark.parametrize("aligns", [False, True])
def test_no_label_at_all(aligns):
    x, y = data(8)
    model = compiled(alignment=ga.AdversarialAlignment(schedule=1.0) if aligns else None, rate=0.1)
    before = [v.numpy() for v in model.variables if v.dtype == "float32"]
    nothing = {task: np.full_like(y[task], NAN) for task in y}
    if aligns:
        with pytest.warns(ga.GradAlignWarning, match="No task has a labelled row"):
            history = model.fit(x, nothing, verbose=0).history
        assert history["alignment_loss"] == [0.0]
    else:
        history = model.fit(x, nothing, verbose=0).history
    assert history["loss"] == history["buy_loss"] == [0.0]
    for left, right in zip(before, [v.numpy() for v in model.variables if v.dtype == "float32"], strict=True):
        np.testing.assert_array_equal(left, right)


def test_the_gradient_of_a_task_without_labels_is_zero():
    x, y = data(8)
    y["buy"][:] = NAN
    model = compiled(rate=0.5)
    tower = model.base.get_layer("buy").kernel.numpy()
    model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(model.base.get_layer("buy").kernel, tower)


@pytest.mark.parametrize(
    ("dtype", "column"), [("bool", True), ("int32", False), ("int64", True), ("float64", False), ("float16", True)]
)
def test_labels_of_any_type(dtype, column):
    x, y = data(8, column=column)
    model = compiled(rate=0.5, metrics={"click": ["accuracy", "AUC"]})
    expected = by_hand(model.base, x, y)
    labels = {task: y[task].astype(dtype) for task in y}
    model.fit(tf.data.Dataset.from_tensors((x, labels)), verbose=0)
    for variable, value in zip(model.base.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "int64"])
def test_labels_of_any_type_as_arrays(dtype):
    x, y = data(8)
    model = compiled(rate=0.5)
    expected = by_hand(model.base, x, y)
    model.fit(x, {task: y[task].astype(dtype) for task in y}, verbose=0)
    for variable, value in zip(model.base.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-5, atol=1e-6)


def test_one_row():
    x, y = data(1)
    model = compiled(alignment=ga.AdversarialAlignment(0.5, schedule=1.0), rate=0.5)
    predictions = {task: p.numpy() for task, p in model(x).items()}
    history = model.fit(x, y, verbose=0).history
    assert history["buy_loss"][0] == pytest.approx(row_losses(y["buy"], predictions["buy"])[0], rel=1e-5)
    assert all(np.isfinite(v.value).all() for v in model.variables)


def test_metrics_see_labelled_rows_only():
    x, y = data(24, missing=0.4, seed=3)
    weights = {"buy": np.random.default_rng(0).integers(0, 3, 24).astype("float32")}
    metrics = {
        "metrics": {"click": ["AUC", "accuracy", "mse"], "buy": ["AUC", keras.metrics.BinaryAccuracy(name="right")]},
        "weighted_metrics": {"buy": ["mse"]},
    }
    model = compiled(**metrics)
    predictions = {task: p.numpy() for task, p in model(x).items()}
    history = model.fit(
        x, y, sample_weight=weights, batch_size=5, verbose=0, shuffle=False, validation_data=(x, y)
    ).history
    click = ~np.isnan(y["click"][:, 0])
    buy = ~np.isnan(y["buy"][:, 0]) & (weights["buy"] != 0)
    auc = keras.metrics.AUC()

    def exact(task, rows):
        auc.reset_state()
        return float(auc(y[task][rows], predictions[task][rows]))

    assert history["click_AUC"][0] == pytest.approx(exact("click", click), rel=1e-5)
    assert history["buy_AUC"][0] == pytest.approx(exact("buy", buy), rel=1e-5)
    assert history["val_buy_AUC"][0] == pytest.approx(exact("buy", ~np.isnan(y["buy"][:, 0])), rel=1e-5)
    right = {task: (predictions[task] > 0.5) == y[task] for task in y}
    assert history["click_accuracy"][0] == pytest.approx(right["click"][click].mean())
    assert history["buy_right"][0] == pytest.approx(right["buy"][buy].mean())
    square = {task: (y[task] - predictions[task])[:, 0] ** 2 for task in y}
    assert history["click_mse"][0] == pytest.approx(square["click"][click].mean(), rel=1e-5)
    expected = np.sum((square["buy"] * weights["buy"])[buy]) / np.sum(weights["buy"][buy])
    assert history["buy_mse"][0] == pytest.approx(expected, rel=1e-5)


def test_vector_labels_miss_a_row_where_any_entry_is_missing():
    x = keras.Input((6,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    base = keras.Model(
        {"x": x}, {"place": keras.layers.Dense(2, name="place")(s), "buy": keras.layers.Dense(1, name="buy")(s)}
    )
    model = compiled(base, loss="mse", metrics={"place": ["mae"]})
    x, _ = data(4)
    y = {"place": np.array([[1, 2], [NAN, 1], [NAN, NAN], [0, 3]], "float32"), "buy": np.ones((4, 1), "float32")}
    predictions = model(x)["place"].numpy()
    history = model.fit(x, y, verbose=0).history
    difference = (y["place"] - predictions)[[0, 3]]
    assert history["place_loss"][0] == pytest.approx(np.mean(difference**2), rel=1e-5)
    assert history["place_mae"][0] == pytest.approx(np.mean(np.abs(difference)), rel=1e-5)


def test_multi_class_labels():
    x = keras.Input((6,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    base = keras.Model({"x": x}, {"kind": keras.layers.Dense(3, "softmax", name="kind")(s)})
    x, _ = data(6)
    given = np.array([0, 2, NAN, 1, NAN, 2], "float32")
    for labels in (given, given[:, None]):
        model = compiled(base, loss="sparse_categorical_crossentropy", metrics={"kind": ["accuracy"]})
        predictions = model(x)["kind"].numpy()
        history = model.fit(x, {"kind": labels}, verbose=0).history
        rows = np.flatnonzero(~np.isnan(given))
        chosen = predictions[rows, given[rows].astype(int)]
        assert history["kind_loss"][0] == pytest.approx(-np.mean(np.log(chosen)), rel=1e-5)
        assert history["kind_accuracy"][0] == pytest.approx(np.mean(predictions[rows].argmax(-1) == given[rows]))


@pytest.mark.parametrize("column", [True, False], ids=["(B, 1)", "(B,)"])
def test_predictions_of_rank_one(column):
    x = keras.Input((6,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    heads = {
        task: keras.layers.Reshape((), name=task)(keras.layers.Dense(1, "sigmoid")(s)) for task in ("click", "buy")
    }
    base = keras.Model({"x": x}, heads)
    assert base.outputs[0].shape == (None,)
    model = compiled(base, ga.AdversarialAlignment(schedule=1.0), metrics={"click": ["accuracy", "AUC"]})
    x, y = data(8, column=column, missing=0.3)
    predictions = {task: p.numpy() for task, p in model(x).items()}
    history = model.fit(x, y, batch_size=4, verbose=0).history
    for task in y:
        assert history[f"{task}_loss"][0] == pytest.approx(mean(y[task], predictions[task]), rel=1e-5)
    label = np.ravel(y["click"])
    kept = ~np.isnan(label)
    assert history["click_accuracy"][0] == pytest.approx(np.mean((predictions["click"] > 0.5)[kept] == label[kept]))


# --- wrong uses ---------------------------------------------------------------------------------------------------


def fails(match, act):
    with pytest.raises(ga.UserError, match=match):
        act()


def test_labels_with_wrong_names():
    x, y = data(8)
    model = compiled()
    fails(
        'unknown task "clik"; the tasks are click, buy. Did you mean "click"',
        lambda: model.fit(x, {**y, "clik": y["buy"]}, verbose=0),
    )
    fails('lack task "buy"', lambda: model.fit(x, {"click": y["click"]}, verbose=0))
    fails("dict keyed by task, {click, buy}; received", lambda: model.fit(x, y["click"], verbose=0))
    fails("dict keyed by task", lambda: model.fit(x, [y["click"], y["buy"]], verbose=0))
    fails("dict keyed by task", lambda: model.evaluate(x, y["click"], verbose=0))


def test_sample_weights_with_wrong_names():
    x, y = data(8)
    model = compiled()
    weights = {"byu": np.ones(8)}
    message = 'sample_weight names an unknown task "byu"; the tasks are click, buy. Did you mean "buy"'
    fails(message, lambda: model.fit(x, y, sample_weight=weights, verbose=0))
    fails(message, lambda: model.fit(x, y, validation_data=(x, y, weights), verbose=0))
    fails(message, lambda: model.evaluate(x, y, sample_weight=weights, verbose=0))
    fails(message, lambda: model.fit(tf.data.Dataset.from_tensors((x, y, weights)), verbose=0))
    fails("one number for each row", lambda: model.fit(x, y, sample_weight={"buy": np.ones((8, 2))}, verbose=0))
    fails("dict keyed by task or one array", lambda: model.train_on_batch(x, y, sample_weight=[np.ones(8), np.ones(8)]))


def test_class_weight_is_refused():
    x, y = data(8)
    fails("class_weight .* give sample_weight", lambda: compiled().fit(x, y, class_weight={0: 1.0, 1: 2.0}, verbose=0))
    fails("class_weight .* give sample_weight", lambda: compiled().train_on_batch(x, y, class_weight={0: 1.0, 1: 2.0}))


def test_wrong_compile_arguments():
    summed = keras.losses.BinaryCrossentropy(reduction="sum")
    fails('task "buy" has reduction="sum"', lambda: compiled(loss={"click": "binary_crossentropy", "buy": summed}))
    fails('reduction="sum"', lambda: compiled(loss=summed))
    fails('loss names an unknown task "clik"', lambda: compiled(loss={"clik": "binary_crossentropy"}))
    fails('loss_weights names an unknown task "clik"', lambda: compiled(loss_weights={"clik": 1.0}))
    fails("loss_weights is a dict", lambda: compiled(loss_weights=[1.0, 2.0]))
    fails('metrics names an unknown task "clik"', lambda: compiled(metrics={"clik": ["AUC"]}))
    fails("weighted_metrics is a dict", lambda: compiled(weighted_metrics=["AUC"]))
    fails("compile needs a loss", lambda: compiled(loss=None))
    fails("No task has a loss", lambda: compiled(loss={}))
    fails("discriminator_optimizer is given", lambda: compiled(discriminator_optimizer="adam"))
    fails(
        'Task "buy" has no loss, so it has no gradient to align',
        lambda: compiled(alignment=ga.AdversarialAlignment(), loss={"click": "binary_crossentropy"}),
    )
    fails("Call compile", lambda: aligned(functional()).fit(*data(8)))


def test_a_loss_that_gives_one_number_is_refused():
    def mean_of_batch(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_true - y_pred))

    x, y = data(8)
    fails(
        'loss of task "click" returns one number',
        lambda: compiled(loss={"click": mean_of_batch}).fit(x, {"click": y["click"]}, verbose=0),
    )


def test_names_of_a_subclassed_base_are_checked_once_they_are_known():
    x, y = data(8)
    model = compiled(Subclassed(), loss={"clik": "mse"})
    fails('loss names an unknown task "clik"', lambda: model.fit(x, y, verbose=0))


@pytest.mark.first_batch_check
def test_data_without_labels():
    x, _ = data(8)
    model = compiled(functional(), ga.AdversarialAlignment(schedule=1.0))
    with pytest.raises(ga.UserError, match="has no labels"):
        model.fit(x)
    with pytest.raises(ga.UserError, match="has no labels"):
        ga.check_second_order(model, x)
    with pytest.raises(ga.UserError, match="Labels are a dict keyed by task"):
        compiled().fit(tf.data.Dataset.from_tensor_slices(x).batch(4))


def test_labels_that_are_text():
    x, y = data(8)
    with pytest.raises(ga.UserError, match='labels of task "buy" are text'):
        compiled().fit(x, {**y, "buy": y["buy"].astype(str)})
    words = tf.data.Dataset.from_tensor_slices((x, {**y, "buy": tf.strings.as_string(y["buy"])})).batch(4)
    with pytest.raises(ga.UserError, match='labels of task "buy" are text'):
        compiled().fit(words)


def test_labels_of_another_width_name_the_task():
    x, y = data(8)
    with pytest.raises(ga.UserError, match='loss of task "buy" does not take labels of shape'):
        compiled().fit(x, {**y, "buy": np.concatenate([y["buy"], y["buy"]], axis=1)})
