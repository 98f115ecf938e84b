"""Without alignment, missing labels and sample weights, `MultiTaskModel` gives the numbers of stock Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import WIDTH, Batches, Subclassed, data, discriminator, forever, functional, restart

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

BCE = {"click": "binary_crossentropy", "buy": "binary_crossentropy"}


def both(make_base, compile_arguments, fit_arguments, x, y, *, epochs=2):
    """Train stock Keras and ours from the same start; return both models and histories."""
    results = []
    for wrap in (lambda base: base, ga.MultiTaskModel):
        restart(3)
        model = wrap(make_base())
        # Stock Keras computes the same in all modes, and is traced in none.
        model.compile(**compile_arguments() | ({} if results else {"run_eagerly": True, "jit_compile": False}))
        if fit_arguments.get("shuffle"):  # TensorFlow draws the order
            keras.utils.set_random_seed(4)
        history = model.fit(x, y, epochs=epochs, verbose=0, **{"shuffle": False, **fit_arguments})
        results.append((model, history.history))
    return results


def assert_equal_models(results, x, *, rtol=1e-5):
    (stock, stock_history), (ours, our_history) = results
    assert set(stock_history) == set(our_history)
    for key in stock_history:
        np.testing.assert_allclose(our_history[key], stock_history[key], rtol=rtol, atol=1e-6, err_msg=key)
    for left, right in zip(stock.variables, ours.base.variables, strict=True):
        if "seed_generator" not in left.path:
            np.testing.assert_allclose(left.value, right.value, rtol=rtol, atol=1e-6, err_msg=left.path)
    expected, found = stock(x), ours(x)
    assert list(found) == list(expected)
    for task in expected:
        np.testing.assert_allclose(found[task], expected[task], rtol=rtol, atol=1e-6)


# Eager, since tracing takes longer than training here; the last two are the other modes, with everything at once: Adam,
# loss weights, regularisation, batch normalisation, metrics, and dropout, of which XLA draws other numbers.
CASES = {
    "default optimizer, one loss for all": (functional, lambda: {"loss": "binary_crossentropy"}),
    "metrics": (
        functional,
        lambda: {
            "optimizer": "sgd",
            "loss": BCE,
            "metrics": {"click": ["AUC", "accuracy"], "buy": [keras.metrics.AUC(name="pr", curve="PR"), "mse"]},
            "weighted_metrics": {"buy": ["accuracy"]},
        },
    ),
    "subclassed, loss objects": (
        lambda: Subclassed(dropout=0.5),
        lambda: {
            "optimizer": keras.optimizers.SGD(0.1),
            "loss": {
                "click": keras.losses.BinaryFocalCrossentropy(),
                "buy": keras.losses.BinaryCrossentropy(label_smoothing=0.1),
            },
        },
    ),
    "clipped, averaged": (
        functional,
        lambda: {
            "optimizer": keras.optimizers.SGD(0.1, global_clipnorm=0.01, use_ema=True, ema_overwrite_frequency=2),
            "loss": BCE,
        },
    ),
    **{
        name: (
            lambda rate=rate: functional(normalize=True, dropout=rate, regularizer="l2", towers=False),
            lambda settings=settings: dict(
                optimizer=keras.optimizers.Adam(0.01),
                loss=BCE,
                loss_weights={"buy": 0.25, "click": 1.0},
                metrics={"click": ["AUC"], "buy": ["accuracy"]},
                **settings,
            ),
        )
        for name, rate, settings in [
            ("compiled", 0.0, {"run_eagerly": False, "jit_compile": True}),
            ("several steps at a time", 0.5, {"run_eagerly": False, "steps_per_execution": 2}),
        ]
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_stock_keras(case):
    make_base, compile_arguments = CASES[case]
    x, y = data(16)
    results = both(
        make_base,
        lambda: {"run_eagerly": True, **compile_arguments()},
        {"batch_size": 8, "validation_data": (x, y), "shuffle": case == "metrics"},
        x,
        y,
    )
    assert_equal_models(results, x)


def test_a_partial_last_batch_weighs_its_rows():
    # Batches of 8, 8, 8 and 5 rows; a rate of 0 keeps the predictions, so the epoch's mean is known.
    x, y = data(29)
    for rate in (0.0, 0.1):
        results = both(
            functional,
            lambda rate=rate: {"optimizer": keras.optimizers.SGD(rate), "loss": BCE, "run_eagerly": True},
            {"batch_size": 8},
            x,
            y,
            epochs=1,
        )
        assert_equal_models(results, x)
        if rate == 0.0:
            predictions, history = results[0][0](x), results[1][1]
            for task in BCE:
                rows = keras.losses.binary_crossentropy(y[task], predictions[task])
                np.testing.assert_allclose(history[f"{task}_loss"], [np.mean(rows)], rtol=1e-6)


def test_heads_of_every_kind():
    def make_base():
        x = keras.Input((WIDTH,), name="x")
        s = keras.layers.Dense(5, "tanh", name="encoder")(x)
        outputs = {
            "kind": keras.layers.Dense(4, "softmax", name="kind")(s),
            "onehot": keras.layers.Dense(3, name="onehot")(s),
            "watch": keras.layers.Dense(1, name="watch")(s),
            "vector": keras.layers.Dense(2, name="vector")(s),
            "own": keras.layers.Dense(1, name="own")(s),
        }
        return keras.Model({"x": x}, outputs)

    def own(y_true, y_pred):
        return tf.reduce_mean(tf.math.log(tf.cosh(y_true - y_pred)), axis=-1)

    random = np.random.default_rng(1)
    x = {"x": random.normal(size=(24, WIDTH)).astype("float32")}
    y = {
        "kind": random.integers(0, 4, size=(24,)),
        "onehot": np.eye(3, dtype="float32")[random.integers(0, 3, size=24)],
        "watch": random.normal(size=(24, 1)).astype("float32"),
        "vector": random.normal(size=(24, 2)).astype("float32"),
        "own": random.normal(size=(24, 1)).astype("float32"),
    }
    arguments = {
        "loss": {
            "kind": "sparse_categorical_crossentropy",
            "onehot": keras.losses.CategoricalCrossentropy(from_logits=True),
            "watch": "mse",
            "vector": keras.losses.Huber(0.5),
            "own": own,
        },
        "metrics": {"kind": ["accuracy"], "onehot": ["accuracy"], "watch": ["mae"], "vector": ["mae"]},
        "run_eagerly": True,
    }
    results = both(make_base, lambda: dict(optimizer=keras.optimizers.SGD(0.1), **arguments), {"batch_size": 8}, x, y)
    assert_equal_models(results, x)


def test_losses_that_the_base_adds_in_call():
    # Activity regularisation, which is a new tensor at each call.
    def make_base():
        x = keras.Input((WIDTH,), name="x")
        s = keras.layers.Dense(5, "tanh", name="encoder", activity_regularizer=keras.regularizers.L1(0.1))(x)
        outputs = {task: keras.layers.Dense(1, "sigmoid", name=task)(s) for task in BCE}
        return keras.Model({"x": x}, outputs)

    x, y = data()
    results = both(
        make_base,
        lambda: {"optimizer": keras.optimizers.SGD(0.1), "loss": BCE, "run_eagerly": True},
        {"batch_size": 8, "validation_data": (x, y)},
        x,
        y,
    )
    assert_equal_models(results, x)


def test_data_sets_generators_and_splits():
    x, y = data(16)
    compile_arguments = {"loss": BCE, "metrics": {"click": ["accuracy"]}, "run_eagerly": True}
    kinds = {
        "arrays": (x, y, {"batch_size": 8, "shuffle": False}),
        "data set": (tf.data.Dataset.from_tensor_slices((x, y)).batch(8), None, {}),
        "PyDataset": (Batches(x, y, rows=8), None, {"shuffle": False}),
        "generator": (forever(x, y, 8), None, {"steps_per_epoch": 2}),
        "validation split": (x, y, {"batch_size": 8, "shuffle": False, "validation_split": 0.25}),
    }
    found = {}
    for kind, (of_x, of_y, fit_arguments) in kinds.items():
        if kind in ("arrays", "validation split"):
            results = both(
                functional,
                lambda: dict(optimizer=keras.optimizers.SGD(0.1), **compile_arguments),
                fit_arguments,
                of_x,
                of_y,
            )
            assert_equal_models(results, x)
            model, history = results[1]
        else:  # Held against the arrays, which are held against stock Keras.
            restart(3)
            model = ga.MultiTaskModel(functional())
            model.compile(keras.optimizers.SGD(0.1), **compile_arguments)
            history = model.fit(of_x, epochs=2, verbose=0, **fit_arguments).history
        found[kind] = [*history.values(), *(v.numpy() for v in model.base.variables)]
    for kind in ("data set", "PyDataset", "generator"):
        for left, right in zip(found[kind], found["arrays"], strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-6, err_msg=kind)


def test_batch_methods():
    x, y = data(8)
    stock, ours = functional(name="stock"), functional(name="ours")
    ours.set_weights(stock.get_weights())
    model = ga.MultiTaskModel(ours)
    for each in (stock, model):
        each.compile(keras.optimizers.SGD(0.1), loss=BCE, metrics={"buy": ["mse"]}, run_eagerly=True)
    left, right = (each.train_on_batch(x, y, return_dict=True) for each in (stock, model))
    assert left.keys() == right.keys() == {"loss", "click_loss", "buy_loss", "buy_mse"}
    for name in left:
        np.testing.assert_allclose(right[name], left[name], rtol=1e-5)
    left, right = (each.test_on_batch(x, y, return_dict=True) for each in (stock, model))
    for name in left:
        np.testing.assert_allclose(right[name], left[name], rtol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(x)["buy"], stock.predict_on_batch(x)["buy"], rtol=1e-5)


def test_evaluate_gives_a_list_without_return_dict():
    x, y = data(8)
    model = ga.MultiTaskModel(functional())
    model.compile("sgd", loss=BCE, run_eagerly=True)
    by_name = model.evaluate(x, y, return_dict=True, verbose=0)
    names = ["loss", "click_loss", "buy_loss"]
    assert set(by_name) == set(names)
    assert model.evaluate(x, y, verbose=0) == pytest.approx([by_name[name] for name in names])
    assert by_name["loss"] == pytest.approx(by_name["click_loss"] + by_name["buy_loss"])


def test_a_task_without_loss():
    # Stock Keras logs no `click_loss` of its own here; ours logs every task's.
    x, y = data()
    compile_arguments = {"loss": {"click": "binary_crossentropy"}, "run_eagerly": True}
    (stock, stock_history), (ours, our_history) = both(
        functional,
        lambda: dict(optimizer=keras.optimizers.SGD(0.1), **compile_arguments),
        {"batch_size": 8},
        x,
        {"click": y["click"]},
    )
    assert set(our_history) == {"loss", "click_loss"}
    np.testing.assert_allclose(our_history["loss"], stock_history["loss"], rtol=1e-5)
    np.testing.assert_allclose(our_history["click_loss"], stock_history["loss"], rtol=1e-5)
    for left, right in zip(stock.variables, ours.base.variables, strict=True):
        np.testing.assert_allclose(left.value, right.value, rtol=1e-5, atol=1e-6)


def test_callbacks(tmp_path):
    x, y = data()
    alignment = ga.AdversarialAlignment(0.1, discriminator=discriminator())
    model = ga.MultiTaskModel(functional(towers=False), "encoder", alignment)
    model.compile(keras.optimizers.SGD(2.0), loss=BCE, metrics={"click": ["AUC"]}, run_eagerly=True)
    callbacks = [
        keras.callbacks.EarlyStopping("val_click_AUC", mode="max", patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=100.0),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
    ]
    # Labels that training cannot predict: validation gets worse soon.
    wrong = {task: 1 - y[task] for task in y}
    history = model.fit(
        x, y, epochs=12, batch_size=24, validation_data=(x, wrong), callbacks=callbacks, verbose=0
    ).history
    epochs = len(history["loss"])
    assert epochs < 12
    best = int(np.argmax(history["val_click_AUC"]))
    assert epochs == best + 1 + 3
    assert model.evaluate(x, wrong, return_dict=True, verbose=0)["click_AUC"] == pytest.approx(
        history["val_click_AUC"][best]
    )
    assert float(model.optimizer.learning_rate) < 2.0
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert len(lines) == epochs + 1 and set(lines[0].split(",")) == {"epoch", *history}
    saved = keras.models.load_model(tmp_path / "best.keras")
    lowest = min(history["val_loss"])
    assert saved.evaluate(x, wrong, return_dict=True, verbose=0)["loss"] == pytest.approx(lowest, rel=1e-5)


def test_history_of_an_aligned_model_and_its_evaluation():
    x, y = data()
    alignment = ga.AdversarialAlignment(0.1, discriminator=discriminator())
    model = ga.MultiTaskModel(functional(), "encoder", alignment)
    model.compile("sgd", loss=BCE, loss_weights={"buy": 0.5}, metrics={"buy": ["AUC"]}, run_eagerly=True)
    history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0).history
    training = {"loss", "click_loss", "buy_loss", "buy_AUC", "alignment_loss", "discriminator_accuracy"}
    assert set(history) == training | {"val_loss", "val_click_loss", "val_buy_loss", "val_buy_AUC"}
    for epoch in range(2):
        # J and its parts; val_loss has no adversary in it.
        parts = history["click_loss"][epoch] + 0.5 * history["buy_loss"][epoch]
        assert history["loss"][epoch] == pytest.approx(parts + history["alignment_loss"][epoch], rel=1e-5)
        parts = history["val_click_loss"][epoch] + 0.5 * history["val_buy_loss"][epoch]
        assert history["val_loss"][epoch] == pytest.approx(parts, rel=1e-5)
