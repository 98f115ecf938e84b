import datetime

import numpy as np
import pyarrow as pa
import pytest

from gradalign.data import Schema, TaskSpec, check_labels, infer_schema, labels
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


# --- where ------------------------------------------------------------------------------------------------------------


def where(condition, other, kind=None, source="the table"):
    """The label of rows that are all positive, hence 1 where the condition is met."""
    column = other if isinstance(other, pa.Array) else pa.array(other, kind)
    table = pa.table({"y": [1] * len(column), "click": column})
    return labels(table, {"t": TaskSpec("y", 1, where=condition)}, source)["t"]


@pytest.mark.parametrize(
    ("condition", "values", "kind", "expected"),
    [
        ("click == 1", [1, 0, None, 2], pa.int32(), [1, NAN, NAN, NAN]),
        ("click != 1", [1, 0, None, 2], pa.int32(), [NAN, 1, NAN, 1]),  # no value is not another value
        ("click==1.0", [1, 0], pa.uint8(), [1, NAN]),
        ("click == '1'", [1, 0], pa.int64(), [1, NAN]),
        ("click == 0.1", [0.1, 0.2, NAN], pa.float32(), [1, NAN, NAN]),
        ("click != 0.1", [0.1, 0.2, NAN], pa.float32(), [NAN, 1, NAN]),
        ("click == true", [True, False, None], None, [1, NAN, NAN]),
        ("click == 1", [True, False, None], None, [1, NAN, NAN]),
        ("click == yes", ["yes", "no", "", None], None, [1, NAN, NAN, NAN]),
        ("click != yes", ["yes", "no", "", None], None, [NAN, 1, NAN, NAN]),
        (' "click" == "in the shop" ', ["in the shop", "at home"], None, [1, NAN]),
        ("click == in the shop", ["in the shop", "at home"], None, [1, NAN]),
        ("click == 01", ["01", "1"], None, [1, NAN]),  # of text, every letter counts
        ('click == ""', ["", "a", None], None, [1, NAN, NAN]),
        ("click == null", ["a", "", None], None, [NAN, 1, 1]),
        ("click != null", [1.0, NAN, None], pa.float64(), [1, NAN, NAN]),
        ("click == 'null'", ["null", None], None, [1, NAN]),
        ("click == null", [None, None], pa.null(), [1, 1]),
        ("click == 1", [None, None], pa.null(), [NAN, NAN]),
        ("click == b", pa.array(["a", "b"]).dictionary_encode(), None, [NAN, 1]),
    ],
)
def test_rows_that_do_not_meet_the_condition_have_no_label(condition, values, kind, expected):
    np.testing.assert_array_equal(where(condition, values, kind), expected)


def test_a_row_that_meets_the_condition_may_still_lack_its_label():
    table = pa.table({"bought": [1, 0, None, 1], "click": [1, 1, 1, 0]})
    np.testing.assert_array_equal(labels(table, {"t": TaskSpec("bought", where="click == 1")})["t"], [1, 0, NAN, NAN])


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("clik == 1", r"Task \"t\": `where` names \"clik\", which is no column of new.csv. Did you mean \"click\"\?"),
        ("click == 3", r"the value \"3\" of `where` never occurs in column \"click\", which holds 0, 1"),
        ("click != 3", r"the value \"3\" of `where` never occurs"),
        (
            "city == Osl",
            r"\"Osl\" of `where` never occurs in column \"city\", which holds Oslo, Rome.*Did you mean \"Oslo\"",
        ),
        ("click == null", r"`where` asks for null, but every row of column \"click\" has a value in new.csv"),
        ("tags == 1", r"column \"tags\" of `where` is of type list<.*>, which cannot be compared"),
        ("none == 1", r"\"1\" of `where` never occurs in column \"none\", which holds nothing"),
        ("city == Rome", r"label column \"y\", where city == Rome, holds one value only, 0"),
        ("free == 1", r"label column \"y\", where free == 1, is empty in new.csv"),
        ("late == 1", r"positive value 1 never occurs in column \"y\", where late == 1, which holds 0, 2"),
    ],
)
def test_conditions_that_leave_nothing_to_learn_are_refused(condition, message):
    table = pa.table(
        {
            "y": [1, 0, 0, None, 2],
            "click": [1, 1, 0, 0, 1],
            "city": ["Oslo", "Oslo", "Rome", "Rome", "Oslo"],
            "tags": [[1]] * 5,
            "none": pa.nulls(5),
            "free": [0, 0, 0, 1, 0],
            "late": [0, 1, 0, 0, 1],
        }
    )
    with pytest.raises(UserError, match=message):
        check_labels(table, {"t": TaskSpec("y", where=condition)}, "new.csv")
    check_labels(table, {"t": TaskSpec("y", where="click == 1")}, "new.csv")


@pytest.mark.parametrize("condition", ["click", "click = 1", "== 1", "click == 1 == 2", "click >= 1", "", 5])
def test_what_is_no_condition(condition):
    with pytest.raises(UserError, match=r'`where` of the task with label "y" is .*; it must be such as "click == 1"'):
        TaskSpec("y", where=condition)


def test_the_column_of_a_condition_is_no_feature():
    table = pa.table({"y": [1, 0, 1, 0], "click": [1, 1, 0, 1], "city": list("abab")})
    tasks = {"t": TaskSpec("y", where="click == 1")}
    schema = infer_schema(table, tasks)
    assert schema.columns == ("city",)
    assert schema.describe().startswith('task t: column "y" is 1, where click == 1\n1 categorical column: city')
    with pytest.raises(
        UserError, match=r'"click" decides which rows have the label of task "t" and cannot be a feature'
    ):
        infer_schema(table, tasks, {"numeric": ["click"]})
    # Dropping it by name, as a resolved config might, is what happens anyway.
    assert infer_schema(table, tasks, {"drop": ["click"]}).columns == ("city",)
