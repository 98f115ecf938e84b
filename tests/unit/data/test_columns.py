import decimal

import numpy as np
import pyarrow as pa
import pytest

from gradalign.data.columns import MISSING, check_column, flatten, plain, raw_lists, raw_tensor, raw_type, typed
from gradalign.errors import UserError


def chunked(values, kind=None):
    return pa.chunked_array([values if isinstance(values, pa.Array) else pa.array(values, kind)])


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.bool_(), "int32"),
        (pa.int8(), "int32"),
        (pa.uint16(), "int32"),
        (pa.int32(), "int32"),
        (pa.uint32(), "int64"),
        (pa.int64(), "int64"),
        (pa.float16(), "float32"),
        (pa.float32(), "float32"),
        (pa.float64(), "float64"),
        (pa.decimal128(5, 2), "float64"),
        (pa.list_(pa.int64()), "int64"),
        (pa.large_list(pa.string()), "string"),
        (pa.list_(pa.float32(), 3), "float32"),
        (pa.list_(pa.list_(pa.int64())), None),
        (pa.date32(), None),
        (pa.binary(), None),
        (pa.null(), None),
    ],
)
def test_raw_types(kind, raw):
    assert raw_type(kind) == raw


@pytest.mark.parametrize(
    ("values", "kind", "raw", "expected"),
    [
        ([3, None], pa.int8(), "int32", [3, MISSING["int32"]]),
        ([3, None], pa.int64(), "int64", [3, MISSING["int64"]]),
        ([True, False, None], None, "int32", [1, 0, MISSING["int32"]]),
        ([0.5, None, float("nan")], pa.float32(), "float32", [0.5, np.nan, np.nan]),
        ([decimal.Decimal("1.50"), None], None, "float64", [1.5, np.nan]),
        (["a", None, "", "a"], None, "string", [b"a", b"", b"", b"a"]),
        (["年龄"], None, "string", ["年龄".encode()]),
        # What another file may hold instead of the training table's type.
        ([3, 4], pa.int64(), "int32", [3, 4]),
        ([3.0, None, float("nan")], None, "int32", [3, MISSING["int32"], MISSING["int32"]]),
        ([3, None], pa.int64(), "float64", [3.0, np.nan]),
        ([0.1], pa.float64(), "float32", [np.float32(0.1)]),
        (["7", "", None], None, "int64", [7, MISSING["int64"], MISSING["int64"]]),
        (["0.5"], None, "float32", [0.5]),
        ([7, None], pa.int64(), "string", [b"7", b""]),
        ([7.0, None], pa.float64(), "string", [b"7", b""]),
        ([], pa.string(), "string", []),
        ([None], pa.null(), "string", [b""]),
        ([None], pa.null(), "float32", [np.nan]),
        ([], pa.int32(), "int32", []),
    ],
)
def test_raw_values_by_hand(values, kind, raw, expected):
    tensor = raw_tensor(chunked(values, kind), raw, "x")
    assert tensor.dtype.name == raw
    np.testing.assert_array_equal(tensor.numpy(), np.array(expected, tensor.numpy().dtype))


@pytest.mark.parametrize(
    ("values", "raw", "reason"),
    [
        (["many"], "int32", "many"),
        ([3.5], "int32", "3.5"),
        ([2**40], "int32", str(2**40)),
        (["3.5"], "int64", "3.5"),
        ([float("inf")], "int32", "inf"),
    ],
)
def test_a_value_that_loses_something_is_an_error(values, raw, reason):
    with pytest.raises(UserError, match=f'Column "age" of new.csv is of type .* cannot be read as {raw}.*{reason}'):
        typed(chunked(values), raw, "age", "new.csv")


def test_text_in_many_chunks_with_a_dictionary():
    column = pa.chunked_array([["b", "a"], [], ["a", None]]).dictionary_encode()
    assert raw_tensor(column, "string", "x").numpy().tolist() == [b"b", b"a", b"a", b""]
    assert plain(column).to_pylist() == ["b", "a", "a", None]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_lists(kind):
    column = pa.chunked_array([pa.array([[1, 2, 3], None], kind), pa.array([[], [4, None]], kind)])
    values, lengths = flatten(column)
    assert values.to_pylist() == [1, 2, 3, 4, None]
    assert lengths.tolist() == [3, 0, 0, 2]
    none = MISSING["int64"]
    assert raw_lists(column, "int64", "x", 9).numpy().tolist() == [
        [1, 2, 3],
        [none] * 3,
        [none] * 3,
        [4, none, none],
    ]
    assert raw_lists(column, "int64", "x", 2).numpy().tolist() == [[1, 2], [none] * 2, [none] * 2, [4, none]]


def test_lists_of_text_and_of_fixed_size():
    assert raw_lists(chunked([["a"], ["b", "c"]]), "string", "x", 9).numpy().tolist() == [[b"a", b""], [b"b", b"c"]]
    fixed = chunked([[1, 2], None], pa.list_(pa.int32(), 2))
    assert raw_lists(fixed, "int32", "x", 9).numpy().tolist() == [[1, 2], [MISSING["int32"]] * 2]


def test_lists_that_are_all_null():
    assert raw_lists(chunked([None, None]), "string", "x", 9).numpy().tolist() == [[b""], [b""]]
    assert (
        raw_lists(chunked([None, None], pa.list_(pa.int32())), "int32", "x", 9).numpy().tolist()
        == [[MISSING["int32"]]] * 2
    )


def test_a_slice_of_lists():
    column = chunked([["a"], ["b"], ["c", "d"]]).slice(1)
    assert raw_lists(column, "string", "x", 9).numpy().tolist() == [[b"b", b""], [b"c", b"d"]]


def test_no_lists_where_lists_were():
    with pytest.raises(
        UserError, match=r'Column "tags" of the table is of type string, but held lists in the training'
    ):
        raw_lists(chunked(["a"]), "string", "tags", 9)


def test_a_missing_column_names_the_nearest():
    check_column(pa.table({"age": [1]}), "age", "We need")
    with pytest.raises(UserError, match=r'We need "aeg", which is no column of new.csv. Did you mean "age"\?'):
        check_column(pa.table({"age": [1]}), "aeg", "We need", "new.csv")
