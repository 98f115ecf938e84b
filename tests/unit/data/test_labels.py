import datetime

import numpy as np
import pyarrow as pa
import pytest

from gradalign.data import Schema, TaskSpec, check_labels, labels
from gradalign.errors import UserError


def label(values, positive, kind=None):
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return labels(pa.table({"y": column}), {"t": TaskSpec("y", positive)})["t"]


def check(values, positive, kind=None):
    check_labels(pa.table({"y": pa.array(values, kind)}), {"t": TaskSpec("y", positive)})


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "kind", "positive", "expected"),
    [
        (["a", "b", None, ""], None, "a", [1, 0, NAN, NAN]),
        (["a", "b", "c"], None, ["a", "c"], [1, 0, 1]),
        (["a", ""], None, "", [0, 1]),  # an empty text that is named is a value
        ([1, 0, None], pa.int64(), 1, [1, 0, NAN]),
        ([1, 0, 2], pa.uint8(), [1, 2], [1, 0, 1]),
        ([1, 0], pa.int8(), "1", [1, 0]),
        ([1, 0], pa.int32(), 1.0, [1, 0]),
        ([1, 0], pa.int32(), True, [1, 0]),
        ([1.0, 0.0, NAN, None], pa.float32(), 1, [1, 0, NAN, NAN]),
        ([0.1, 0.2], pa.float32(), 0.1, [1, 0]),  # 0.1 as float32 holds it
        ([True, False, None], None, 1, [1, 0, NAN]),
        ([True, False], None, "false", [0, 1]),
        (["1", "0"], None, 1, [1, 0]),
        (["x", "y"], pa.large_string(), "x", [1, 0]),
        ([None, None], pa.null(), 1, [NAN, NAN]),
    ],
)
def test_values_by_hand(values, kind, positive, expected):
    result = label(values, positive, kind)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


def test_a_dictionary_column_in_chunks():
    chunks = pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", None]).dictionary_encode()])
    result = labels(pa.table({"y": chunks}), {"t": TaskSpec("y", "b")})["t"]
    np.testing.assert_array_equal(result, [0, 1, 1, NAN])


def test_several_tasks_may_share_a_column_and_keep_their_order():
    table = pa.table({"y": ["a", "b", "c"]})
    result = labels(table, Schema({"z": TaskSpec("y", "a"), "b": TaskSpec("y", ["a", "b"])}))
    assert list(result) == ["z", "b"]
    np.testing.assert_array_equal(result["b"], [1, 1, 0])


@pytest.mark.parametrize(
    ("values", "positive", "message"),
    [
        ([None, None], 1, r'label column "y" is empty'),
        (["", ""], "a", r'label column "y" is empty'),
        (["a", "a", None], "a", r"holds one value only, 'a'"),
        ([0, 0], 1, r"holds one value only, 0"),
        (["- 50000.", "50000+."], "50000+", r'value "50000\+" never occurs .* Did you mean "50000\+\."'),
        ([0, 1], 2, r'value 2 never occurs in column "y", which holds 0, 1'),
        ([0, 1], [1, 2], r"value 2 never occurs"),
        ([0, 1], "yes", r'value "yes" never occurs'),
        ([0, 1], 0.5, r"value 0.5 never occurs"),
        ([0, 1], 2**70, r"never occurs"),
        (["a", "b"], ["a", "b"], r"has positive values only"),
        ([str(i) for i in range(9)], "x", r"which holds 0, 1, 2, 3, 4, 5, \.\.\.\."),
    ],
)
def test_what_cannot_be_learnt_is_refused(values, positive, message):
    with pytest.raises(UserError, match=message) as caught:
        check(values, positive)
    assert str(caught.value).startswith('Task "t": ')


def test_what_can_be_learnt_passes():
    check([0, 1, None], 1)
    check(["a", "b"], "b")
    check([True, False], True)


def test_a_later_table_need_not_hold_both_values():
    np.testing.assert_array_equal(label(["b", "b"], "a"), [0, 0])


def test_a_missing_label_column_names_the_nearest():
    with pytest.raises(
        UserError, match=r'Task "t" needs the label column "lable", which is no column of new.csv. Did you'
    ):
        labels(pa.table({"label": [1]}), {"t": TaskSpec("lable")}, source="new.csv")


@pytest.mark.parametrize("values", [[[1], [0]], [datetime.date(2020, 1, 1)] * 2, [{"a": 1}] * 2])
def test_types_that_are_no_label(values):
    with pytest.raises(UserError, match="cannot be a label"):
        label(values, 1)
