"""Which rows have a label, and labels and weights by task."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks import labelled_rows, labels_by_task, weights_by_task
from gradalign.tasks.labels import completed_weights

NAN = float("nan")


def as_lists(rows):
    return rows.y_true.numpy().tolist(), rows.weight.numpy().tolist(), rows.mask.numpy().tolist()


def test_nan_labels_are_missing_and_made_safe():
    rows = labelled_rows(tf.constant([1.0, NAN, 0.0]), None, "float32")
    assert as_lists(rows) == ([1.0, 0.0, 0.0], [1.0, 0.0, 1.0], [True, False, True])


def test_sample_weight_zero_is_missing_and_keeps_its_label():
    rows = labelled_rows(tf.constant([1.0, NAN, 2.0]), tf.constant([0.0, 3.0, 0.5]), "float64")
    assert as_lists(rows) == ([1.0, 0.0, 2.0], [0.0, 0.0, 0.5], [False, False, True])
    assert rows.weight.dtype == tf.float64


def test_negative_weights_are_labels():
    assert as_lists(labelled_rows(tf.constant([1.0, 2.0]), tf.constant([-1.0, 1.0]), "float32"))[2] == [True, True]


def test_columns():
    rows = labelled_rows(tf.constant([[1.0], [NAN]]), tf.constant([[2.0], [2.0]]), "float32")
    assert as_lists(rows) == ([[1.0], [0.0]], [2.0, 0.0], [True, False])


def test_a_nan_anywhere_in_a_row_takes_the_whole_row():
    rows = labelled_rows(tf.constant([[1.0, NAN], [3.0, 4.0]]), None, "float32")
    assert as_lists(rows) == ([[1.0, 0.0], [3.0, 4.0]], [0.0, 1.0], [False, True])


def test_whole_numbers_are_never_missing():
    rows = labelled_rows(tf.constant([1, 0, 2]), None, "float32")
    assert as_lists(rows) == ([1, 0, 2], [1.0] * 3, [True] * 3)
    assert rows.y_true.dtype == tf.int32


def test_whole_numbers_as_weights():
    assert as_lists(labelled_rows(tf.constant([1.0, 1.0]), tf.constant([2, 0]), "float32"))[1] == [2.0, 0.0]


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 1), ()])
def test_weights_of_other_shapes_are_refused(shape):
    with pytest.raises(UserError, match=r"one number for each row, \(B,\); received shape"):
        labelled_rows(tf.ones([2, 2]), tf.ones(shape), "float32")


def test_labels_come_in_the_order_of_the_tasks():
    assert list(labels_by_task({"buy": 1, "click": 2}, ["click", "buy"]).items()) == [("click", 2), ("buy", 1)]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"click": 1, "buy": 2, "lik": 3}, r'unknown task "lik"; the tasks are click, buy, like. Did you mean "like"'),
        ({"click": 1, "like": 2}, 'labels lack task "buy"; give NaN'),
        ([1, 2, 3], "keyed by task, {click, buy, like}; received list"),
    ],
    ids=["unknown", "missing", "list"],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(UserError, match=message):
        labels_by_task(labels, ["click", "buy", "like"])


def test_weights_by_task():
    one = np.ones(2)
    assert weights_by_task(None, ["a", "b"]) == {"a": None, "b": None}
    assert weights_by_task({"b": one}, ["a", "b"]) == {"a": None, "b": one}
    assert weights_by_task(one, ["a", "b"]) == {"a": one, "b": one}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"bb": [1.0]}, 'sample_weight names an unknown task "bb"; the tasks are a, b'),
        ([[1.0], [2.0]], "received list"),
    ],
    ids=["unknown", "list"],
)
def test_weights_that_do_not_fit(weights, message):
    with pytest.raises(UserError, match=message):
        weights_by_task(weights, ["a", "b"])


def test_missing_weights_of_arrays_become_ones():
    found = completed_weights({"a": [1, 0, 1], "b": np.zeros((3, 1))}, {"b": np.array([1.0, 2.0, 0.0])})
    assert {task: w.tolist() for task, w in found.items()} == {"a": [1.0, 1.0, 1.0], "b": [1.0, 2.0, 0.0]}
    array = np.ones(3)
    assert completed_weights({"a": [1, 0, 1]}, array) is array
    assert completed_weights({"a": [1]}, None) is None
    with pytest.raises(UserError, match='unknown task "c"'):
        completed_weights({"a": [1]}, {"c": [1.0]})
