"""`jit_compile="dense"`: XLA compiles the step but for the tables, and the numbers stay those of the plain step."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.dense_cut import dense_obstacle
from gradalign.dense_part import chosen_mode

from .small_models import TASKS, Subclassed, aligned, all_state, assert_same, discriminator, restart

pytestmark = pytest.mark.usefixtures("no_first_batch_check")
LOSS = "binary_crossentropy"


class Watching(keras.optimizers.SGD):
    """Keeps the kinds of the gradients that reach it, by the path of the variable."""

    def apply(self, grads, trainable_variables=None):
        self.seen = {v.path: type(g) for g, v in zip(grads, trainable_variables, strict=True)}
        super().apply(grads, trainable_variables)


def data():
    """Seven rows: of batches of four, the last one is smaller."""
    random = np.random.default_rng(0)
    x = {"user": random.integers(0, 5, 7), "items": random.integers(1, 4, (7, 2)), "own": np.resize(TASKS, 7)}
    x["items"][::3, 1] = 0
    y = {task: random.integers(0, 2, (7, 1)).astype("float64") for task in TASKS}
    y["buy"][::3] = np.nan
    return x, y


def library():
    fields = {"user": ga.layers.Categorical(5), "items": ga.layers.MultiValued(4)}
    return ga.architectures.shared_private(fields, TASKS, shared_dim=2, private_dim=1, towers=(3,), activation="relu")


def functional(regularizer=None):
    """Two tables, one of which masks its padding, and the shared layer above them."""
    user, items = keras.Input((), name="user", dtype="int32"), keras.Input((2,), name="items", dtype="int32")
    of_user = keras.layers.Embedding(5, 2, name="users")(user)
    of_items = keras.layers.Embedding(4, 2, mask_zero=True, name="items_table")(items)
    joined = keras.layers.Concatenate()([of_user, keras.layers.GlobalAveragePooling1D()(of_items)])
    joined = ga.layers.BatchNormalization()(joined)
    s = keras.layers.Dense(4, "tanh", name="encoder", activity_regularizer=regularizer)(joined)
    return keras.Model({"user": user, "items": items}, {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in TASKS})


CASES = {
    "a lookup is shared": (library, "shared_embedding", {"every": 2}),
    "a layer above lookups is shared": (lambda: functional("l2"), "encoder", {"row_task": "own"}),
}


@pytest.mark.parametrize(("base", "shared", "settings"), CASES.values(), ids=CASES)
def test_two_epochs_end_at_the_weights_of_the_plain_step(base, shared, settings):
    keras.config.set_floatx("float64")
    x, y = data()
    x = x if "row_task" in settings else {name: x[name] for name in ("user", "items")}
    found = {}
    for mode in (False, "dense"):
        restart()
        model = aligned(base(), shared=shared, discriminator=discriminator(4), **settings)
        # The plain step is the same in an eager run, where nothing is traced for it.
        model.compile(Watching(0.1), loss=LOSS, metrics={"buy": ["mse"]}, jit_compile=mode, run_eagerly=not mode)
        history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        found[mode] = all_state(model), {name: np.array(values) for name, values in history.items()}
    for plain, dense in zip(found[False], found["dense"], strict=True):
        assert_same(plain, dense, rtol=1e-9, atol=1e-9)
    tables = {path for path, kind in model.optimizer.seen.items() if issubclass(kind, tf.IndexedSlices)}
    names = ("table", "embeddings")
    assert tables == {v.path for v in model.base.trainable_variables if v.path.split("/")[-1] in names}
    # Traced once, whatever the batches; a step without the alignment is a function of its own.
    compiled = model._held.dense.compiled.values()
    assert [function.experimental_get_tracing_count() for function in compiled] == [1] * settings.get("every", 1)
    for function in compiled:
        (traced,) = function._list_all_concrete_functions()
        assert traced.function_def.attr["_XlaMustCompile"].b
    assert model.uses_xla and not model.jit_compile


def test_a_saved_model_keeps_the_mode(tmp_path):
    model = ga.MultiTaskModel(functional())
    model.compile("sgd", loss=LOSS, jit_compile="dense")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_compile_config()["jit_compile"] == "dense" and loaded.uses_xla
    loaded.compile("sgd", loss=LOSS, jit_compile=False)
    assert not loaded.uses_xla


def test_the_base_stays_as_it_was():
    base = functional()
    ga.MultiTaskModel(base).compile("sgd", loss=LOSS, jit_compile="dense")
    assert base.get_layer("encoder").output.shape == (None, 4)  # fails for a layer with a second call


def nested():
    ids = keras.Input((), dtype="int32")
    inner = keras.Model(ids, keras.layers.Embedding(5, 4, name="rows")(ids), name="encoder")
    return heads(ids := keras.Input((), name="ids", dtype="int32"), inner(ids))


def heads(inputs, s):
    return keras.Model(inputs, {t: keras.layers.Dense(1, "sigmoid", name=t)(s) for t in TASKS}, name="base")


def no_table():
    x = keras.Input((2,), name="x")
    return heads(x, keras.layers.Dense(3)(x))


def table(**settings):
    ids = keras.Input((), name="ids", dtype="int32")
    return heads(ids, keras.layers.Embedding(5, 2, name="rows", **settings)(ids))


def trained_below():
    x = keras.Input((2,), name="x")
    return heads(x, keras.layers.Embedding(5, 2)(keras.ops.argmax(keras.layers.Dense(5, name="router")(x), axis=-1)))


def words():
    ids, word = keras.Input((), name="ids", dtype="int32"), keras.Input((), name="word", dtype="string")
    one_hot = keras.layers.StringLookup(vocabulary=["a"], output_mode="one_hot", name="coded")(word)
    return heads([ids, word], keras.layers.Concatenate()([keras.layers.Embedding(5, 2)(ids), one_hot]))


class WithCall(keras.Model):
    """A functional model whose nodes are not all that it does."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=training)


def with_call():
    base = table()
    return WithCall(inputs=base.input, outputs=base.output, name="base")


REFUSED = {
    "subclassed": (Subclassed, {}, "not a functional model.*make it with keras.Model"),
    "own call": (with_call, {}, 'model "base" is not a functional model'),
    "nested": (nested, {}, 'the table "rows" is inside "encoder".*call its layers in model "base" itself'),
    "no table": (no_table, {}, 'model "base" has no table to be cut at: take jit_compile=True'),
    "trained below": (trained_below, {}, '"router", whose output is looked up in a table, is trained'),
    "loss of a lookup": (lambda: table(activity_regularizer="l2"), {}, 'the table "rows" adds a loss'),
    "text": (words, {}, '"word", which is not looked up, is text'),
    "eager": (table, {"run_eagerly": True}, "run_eagerly=True compiles nothing"),
}


@pytest.mark.parametrize(("base", "arguments", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_cut_is_refused(base, arguments, sentence):
    model = ga.MultiTaskModel(base())
    with pytest.raises(ga.UserError, match=f'jit_compile="dense" cannot be had, since .*{sentence}'):
        model.compile("sgd", loss=LOSS, jit_compile="dense", **arguments)


def test_text_that_is_looked_up_stays_outside():
    word = keras.Input((), name="word", dtype="string")
    number = keras.layers.StringLookup(vocabulary=["a"], name="coded")(word)
    assert dense_obstacle(heads(word, keras.layers.Embedding(2, 2)(number))) is None
    assert "2 replicas" in dense_obstacle(table(), replicas=2)


def test_auto_goes_by_the_devices():
    assert chosen_mode("auto", None, ["CPU"]) is False
    assert chosen_mode("auto", None, ["CPU", "GPU"]) == "dense"
    assert chosen_mode("auto", "it has no table", ["CPU", "TPU"]) == "auto"
    assert chosen_mode("auto", None, ["CPU", "GPU"], loops=True) is False
    assert chosen_mode(True, None, ["CPU"], loops=True) is True
    for wrong in ("Dense", 1, 0):
        with pytest.raises(ga.UserError, match=rf'"auto" or "dense"; received {wrong!r}'):
            chosen_mode(wrong, None)
