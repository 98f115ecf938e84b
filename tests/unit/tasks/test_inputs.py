"""What goes into the base, and predictions by task."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks import check_base, own_inputs, predictions_by_task

A, B, W = tf.constant([[1.0]]), tf.constant([[2.0]]), tf.constant([True])


def base(structure="dict"):
    inputs = {name: keras.Input((1,), name=name) for name in ("user", "item")}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    given = inputs if structure == "dict" else list(inputs.values())
    return keras.Model(given, {"a": keras.layers.Dense(1)(joined)}, name="ranker")


class Subclassed(keras.Model):
    def call(self, x):
        return {"a": x["user"]}


def test_inputs_of_a_dict_model_are_picked_by_name():
    inputs, column = own_inputs(base(), {"which": W, "item": B, "user": A}, "which")
    assert list(inputs) == ["user", "item"]
    assert inputs["user"] is A and inputs["item"] is B and column is W


def test_inputs_of_a_list_model_are_put_in_its_order():
    inputs, column = own_inputs(base("list"), {"item": B, "user": A})
    assert inputs[0] is A and inputs[1] is B and column is None


def test_the_one_input_of_a_model_comes_bare():
    x = keras.Input((1,), name="x")
    model = keras.Model(x, {"a": x * 2.0})
    assert own_inputs(model, {"x": A})[0] is A
    sequential = keras.Sequential([keras.Input((1,), name="x"), keras.layers.Dense(1)])
    assert own_inputs(sequential, {"x": A})[0] is A


def test_a_subclassed_model_picks_for_itself():
    x = {"user": A, "which": W, "more": B}
    inputs, column = own_inputs(Subclassed(), x, "which")
    assert inputs == x and column is W


def test_what_is_no_dict_passes():
    assert own_inputs(base("list"), [A, B]) == ([A, B], None)
    assert own_inputs(base(), [A, B], "which", needed=False) == ([A, B], None)


def test_the_row_task_may_be_an_input_too():
    inputs, column = own_inputs(base(), {"user": A, "item": B}, "user")
    assert inputs["user"] is A and column is A


def test_the_row_task_may_be_missing_where_it_is_not_needed():
    assert own_inputs(base(), {"user": A, "item": B}, "which", needed=False)[1] is None


@pytest.mark.parametrize(
    ("x", "row_task", "message"),
    [
        (
            {"user": A, "item": B, "usr": A},
            None,
            'key "usr" that is not an input of model "ranker".*Did you mean "user"',
        ),
        ({"user": A}, None, 'lacks "item", an input of model "ranker"'),
        ({"user": A, "item": B}, "which", 'row_task="which" is not a key of x; it has user, item'),
        ([A, B], "which", 'row_task="which" names a key of x, but x is not a dict; it is list'),
    ],
    ids=["unknown", "missing", "no row task", "list"],
)
def test_inputs_that_do_not_fit(x, row_task, message):
    with pytest.raises(UserError, match=message):
        own_inputs(base(), x, row_task)


def test_predictions_are_a_dict():
    outputs = {"b": A, "a": B}
    assert predictions_by_task(base(), outputs) == outputs


@pytest.mark.parametrize(
    ("outputs", "received"), [(A, "EagerTensor"), ([A], "list"), ({}, "dict"), ({1: A}, r"keys \[1\]")], ids=str
)
def test_anything_else_is_refused(outputs, received):
    with pytest.raises(UserError, match=rf'Model "ranker" returns .*{received}.*{{task name: prediction}}'):
        predictions_by_task(base(), outputs)


def test_bases():
    check_base(base())
    with pytest.raises(UserError, match="base is a Keras model; received Dense"):
        check_base(keras.layers.Dense(1))


@pytest.mark.parametrize("method", ["train_step", "compute_loss"])
def test_a_base_that_trains_in_its_own_way_is_refused(method):
    own = type("Own", (Subclassed,), {method: lambda self, *args, **kwargs: None})
    with pytest.raises(UserError, match=f'Model "mine" has a {method} of its own'):
        check_base(own(name="mine"))
