"""What goes into the base: its own inputs by name, the column that names each row's task, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .first_update import WEIGHT, assert_first_update, compiled, fit_once, towers_of
from .small_models import TASKS, WIDTH, Subclassed, aligned, data, functional

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

# --- inputs that name each row's task ------------------------------------------------------------------------------


# The column is taken out of x before any base sees it: each kind of column with one of the bases.
@pytest.mark.parametrize(
    ("of", "kind"),
    [
        ("functional", "bool"),
        ("functional", "string"),
        ("functional", "int64"),
        ("subclassed", "int32"),
        ("subclassed", "column"),
    ],
)
def test_row_task_is_a_key_that_the_base_does_not_take(kind, of):
    base = functional() if of == "functional" else Subclassed()
    model = compiled(aligned(base, weight=WEIGHT, row_task="which"))
    x, y = data(16, missing=0.2)
    first = np.random.default_rng(0).random(16) < 0.5
    column = {
        "bool": first,
        "int32": np.where(first, 0, 1).astype("int32"),
        "int64": np.where(first, 0, 1),
        "string": np.where(first, "click", "buy"),
        "column": first[:, None],
    }[kind]
    if of == "functional":
        assert_first_update(
            model,
            lambda x: base.get_layer("encoder")(x["x"]),
            towers_of(base, TASKS),
            x,
            y,
            {**x, "which": column},
            column,
        )
    else:
        fit_once(model, {**x, "which": column}, y)
    model.fit({**x, "which": column}, y, batch_size=16, verbose=0)
    # Prediction and evaluation do without it, and leave it out.
    with_column = model.predict({**x, "which": column}, verbose=0)
    np.testing.assert_allclose(model.predict(x, verbose=0)["buy"], with_column["buy"], rtol=1e-6)
    assert model.evaluate(x, y, return_dict=True, verbose=0)["loss"] > 0


def test_row_task_that_the_base_takes_too():
    x, which = keras.Input((WIDTH,), name="x"), keras.Input((), name="which", dtype="int32")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    side = keras.layers.Embedding(2, 3)(which)
    outputs = {}
    for t in TASKS:
        outputs[t] = keras.layers.Dense(1, "sigmoid", name=t)(
            keras.layers.Dense(4, "gelu")(keras.layers.Concatenate()([s, side]))
        )
    model = compiled(aligned(keras.Model({"x": x, "which": which}, outputs), row_task="which"))
    x, y = data(16)
    model.fit({**x, "which": np.arange(16) % 2}, y, verbose=0)
    with pytest.raises(ga.UserError, match='x lacks "which", an input'):
        model.predict(x, verbose=0)


def test_wrong_row_tasks():
    x, y = data(16)

    def fit(column, **settings):
        compiled(aligned(functional(), row_task="which", **settings)).fit(
            tf.data.Dataset.from_tensors(({**x, **({} if column is None else {"which": column})}, y)), verbose=0
        )

    with pytest.raises(ga.UserError, match='row_task="which" is not a key of x'):
        fit(None)
    with pytest.raises(ga.UserError, match="received float32"):
        fit(np.zeros(16, "float32"))
    with pytest.raises((ga.UserError, tf.errors.InvalidArgumentError), match="outside"):
        fit(np.full(16, 2))
    with pytest.raises((ga.UserError, tf.errors.InvalidArgumentError), match="outside"):
        fit(np.array(["click"] * 15 + ["like"]))
    single = ga.MultiTaskModel(functional(), "encoder", ga.AdversarialAlignment(row_task="which"))
    with pytest.raises(ga.UserError, match="x is not a dict"):
        compiled(single).fit(x["x"], y, verbose=0)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_wrong_inputs():
    x, y = data(16)
    model = compiled(aligned(functional()))
    for act in (model.fit, model.evaluate):
        with pytest.raises(ga.UserError, match='x has a key "a" that is not an input of model "base", which takes x'):
            act({"a": x["x"], **x}, y, verbose=0)
        with pytest.raises(ga.UserError, match=r'x has a key "y"'):
            act({"y": x["x"]}, y, verbose=0)
    with pytest.raises(ga.UserError, match='x has a key "a"'):
        model.predict({"a": x["x"], **x}, verbose=0)


def test_inputs_are_picked_by_name_whatever_their_order():
    b, c = keras.Input((2,), name="b"), keras.Input((2,), name="c")
    s = keras.layers.Dense(5, "tanh", name="encoder")(keras.layers.Concatenate()([b, 10.0 * c]))
    outputs = {t: keras.layers.Dense(1, "sigmoid", name=t)(keras.layers.Dense(4, "gelu")(s)) for t in TASKS}
    random = np.random.default_rng(0)
    x = {name: random.normal(size=(8, 2)).astype("float32") for name in ("c", "b")}
    for structure in ({"b": b, "c": c}, [b, c]):
        model = ga.MultiTaskModel(keras.Model(structure, outputs))
        expected = model.base(x if isinstance(structure, dict) else [x["b"], x["c"]])
        np.testing.assert_allclose(model(x)["buy"], expected["buy"], rtol=1e-6)


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 0.0


def test_bases_that_are_refused():
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, name="encoder")(x)
    a, b = (keras.layers.Dense(1, name=t)(s) for t in TASKS)
    for kind in (OwnStep, OwnLoss):
        own = kind(inputs=x, outputs={"a": a, "b": b})
        with pytest.raises(
            ga.UserError, match=f"has a {'train_step' if kind is OwnStep else 'compute_loss'} of its own"
        ):
            ga.MultiTaskModel(own)
    with pytest.raises(ga.UserError, match="base is a Keras model; received Dense"):
        ga.MultiTaskModel(keras.layers.Dense(1))
    with pytest.raises(ga.UserError, match=r"returns a list; a multi-task base returns \{task name: prediction\}"):
        ga.MultiTaskModel(keras.Model(x, [a, b]))
    with pytest.raises(ga.UserError, match="multi-task base returns"):
        ga.MultiTaskModel(keras.Model(x, a))
    with pytest.raises(ga.UserError, match="needs to know where the shared tensor is"):
        ga.MultiTaskModel(functional(), alignment=ga.AdversarialAlignment())
    with pytest.raises(ga.UserError, match=r'has no layer "encodr" .* Did you mean "encoder"'):
        ga.MultiTaskModel(functional(), "encodr", ga.AdversarialAlignment())
    with pytest.raises(ga.UserError, match="alignment is an alignment such as"):
        ga.MultiTaskModel(functional(), "encoder", "adversarial")
