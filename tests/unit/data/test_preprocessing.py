import json

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from gradalign.architectures import shared_private
from gradalign.data import Preprocessing, Schema, TaskSpec, infer_schema
from gradalign.errors import GradAlignWarning, UserError
from gradalign.layers import Categorical, MultiValued, Numeric

TASKS = {"t": TaskSpec("y")}
TRAIN = pa.table(
    {
        "native country": ["a", "b", None, "b", "a", "rare"],
        "age": pa.array([10, None, 30, 40, 20, 20], pa.int32()),
        "tags": [["x", "y"], None, [], ["x", None], ["y"], ["rare"]],
        "weight": pa.array([1.0, None, 3.0, 5.0, float("nan"), 3.0], pa.float32()),
        "height": pa.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]),
        "code": pa.array([7, 7, 8, 8, 7, None], pa.int64()),
        "flag": [True, False, None, True, False, True],
        "y": [0, 1, 0, 1, None, 1],
    }
)
FEATURES = {
    "numeric": {"age": {}, "weight": {"transform": "project"}, "height": {"transform": "project"}},
}


@pytest.fixture(scope="module")
def fitted():
    return Preprocessing.fit(TRAIN, infer_schema(TRAIN, TASKS, FEATURES))


def test_fields_follow_the_columns(fitted):
    assert list(fitted.fields.items()) == [
        ("native_country", Categorical(4)),
        ("age", Categorical(5)),
        ("tags", MultiValued(4)),
        ("weight", Numeric()),
        ("weight_is_missing", Categorical(2)),
        ("height", Numeric()),  # never missing in training: no field says so
        ("code", Categorical(4)),
        ("flag", Categorical(4)),
    ]


def test_the_training_rows_by_hand(fitted):
    encoded = fitted.encode(TRAIN)
    assert encoded["native_country"].tolist() == [2, 3, 0, 3, 2, 1]  # "rare" occurs once
    assert encoded["age"].tolist() == [1, 0, 3, 4, 2, 2]
    assert encoded["tags"].tolist() == [[2, 3], [0, 0], [0, 0], [2, 0], [3, 0], [1, 0]]
    np.testing.assert_allclose(encoded["weight"], np.array([-2, 0, 0, 2, 0, 0]) / np.sqrt(2), rtol=1e-6)
    assert encoded["weight_is_missing"].tolist() == [0, 1, 0, 0, 1, 0]
    assert encoded["height"].tolist() == [-1, 1, -1, 1, -1, 1]
    assert encoded["code"].tolist() == [2, 2, 3, 3, 2, 0]
    assert encoded["flag"].tolist() == [2, 3, 0, 2, 3, 2]
    assert {k: v.dtype.name for k, v in encoded.items() if v.dtype != np.int32} == {
        "weight": "float32",
        "height": "float32",
    }


def test_unseen_values_and_other_types(fitted):
    new = pa.table(
        {
            "y2": [0],
            "flag": [0],
            "code": ["9"],
            "height": pa.array([99], pa.int64()),
            "weight": pa.array([None], pa.float64()),
            "tags": pa.array([["new", "x", "x"]], pa.large_list(pa.string())),
            "age": pa.array([1000.0]),
            "native country": ["nowhere"],
        }
    )
    encoded = fitted.encode(new)
    assert {k: v.tolist() for k, v in encoded.items()} == {
        "native_country": [1],
        "age": [4],
        "tags": [[1, 2, 2]],
        "weight": [0.0],
        "weight_is_missing": [1],
        "height": [1.0],  # brought into the training range
        "code": [1],
        "flag": [3],
    }


def random_table(rng, rows):
    def some_null(values, kind=None):
        return pa.array([None if rng.random() < 0.1 else v for v in values], kind)

    numbers = rng.normal(size=rows) * 10.0 ** rng.integers(-3, 6)
    numbers[rng.random(rows) < 0.05] = rng.choice([np.nan, np.inf, -np.inf])
    return pa.table(
        {
            "text": some_null(rng.choice([f"w{i}" for i in range(30)], rows).tolist()),
            "whole": some_null(rng.integers(-1000, 1000, rows).tolist(), pa.int64()),
            "codes": some_null(rng.integers(0, 9, rows).tolist(), pa.int32()),
            "number": some_null(numbers.tolist(), pa.float32()),
            "projected": some_null(numbers.tolist(), pa.float64()),
            "lists": some_null([rng.integers(0, 20, rng.integers(0, 4)).tolist() for _ in range(rows)]),
            "y": (np.arange(rows) % 2).tolist(),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_columns_encoded_at_once_are_what_a_served_model_makes_of_rows(seed):
    rng = np.random.default_rng(seed)
    train = random_table(rng, 150)
    preprocessing = Preprocessing.fit(
        train, infer_schema(train, TASKS, {"numeric": {"projected": {"transform": "project"}}})
    )
    table = random_table(rng, 80)
    served = preprocessing.model(preprocessing.raw(table))
    encoded = preprocessing.encode(table)
    assert list(encoded) == list(served) == list(preprocessing.fields)
    for name, values in served.items():
        assert encoded[name].dtype == values.numpy().dtype
        np.testing.assert_array_equal(encoded[name], values.numpy())


@pytest.mark.parametrize("seed", range(8))
def test_every_id_of_any_table_is_in_range_and_every_number_finite(seed):
    rng = np.random.default_rng(seed)
    train = random_table(rng, 150)
    features = {"numeric": {"projected": {"transform": "project"}, "number": {"buckets": int(rng.integers(2, 20))}}}
    preprocessing = Preprocessing.fit(train, infer_schema(train, TASKS, features))
    for table in (train, random_table(rng, 200), random_table(rng, 1)):
        for name, values in preprocessing.encode(table).items():
            field = preprocessing.fields[name]
            assert len(values) == table.num_rows
            if isinstance(field, Numeric):
                assert np.all(np.isfinite(values))
            else:
                assert values.min() >= 0 and values.max() < field.size


def test_each_row_is_encoded_alone(fitted):
    whole = fitted.encode(TRAIN)
    for i in range(TRAIN.num_rows):
        one = fitted.encode(TRAIN.slice(i, 1))
        for name, values in one.items():
            np.testing.assert_array_equal(
                values[0], whole[name][i, : values.shape[1]] if values.ndim > 1 else whole[name][i]
            )


def test_tables_larger_than_a_chunk():
    rows = (1 << 16) + 5
    table = pa.table(
        {"code": np.arange(rows) % 7, "tags": [["a"]] * (rows - 1) + [["a", "b"]], "y": np.arange(rows) % 2}
    )
    encoded = Preprocessing.fit(table, infer_schema(table, TASKS)).encode(table)
    assert encoded["code"].shape == (rows,)
    assert encoded["tags"].shape == (rows, 2)
    order = {code: i + 2 for i, code in enumerate(np.argsort(-np.bincount(np.arange(rows) % 7), kind="stable"))}
    assert encoded["code"].tolist() == [order[c] for c in np.arange(rows) % 7]


def test_a_table_without_rows(fitted):
    encoded = fitted.encode(TRAIN.slice(0, 0))
    assert {len(v) for v in encoded.values()} == {0}


def test_saved_and_loaded_it_is_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "preprocessing.json")
    loaded = Preprocessing.load(tmp_path / "preprocessing.json")
    assert [p.name for p in tmp_path.iterdir()] == ["preprocessing.json"]
    assert loaded.columns == fitted.columns
    assert loaded.fields == fitted.fields
    for name, values in loaded.encode(TRAIN).items():
        np.testing.assert_array_equal(values, fitted.encode(TRAIN)[name])


def test_edges_survive_the_file_to_the_last_bit(tmp_path):
    table = pa.table({"x": np.random.default_rng(0).normal(size=100), "y": np.arange(100) % 2})
    fitted = Preprocessing.fit(table, infer_schema(table, TASKS))
    fitted.save(tmp_path / "p.json")
    assert Preprocessing.load(tmp_path / "p.json").columns[0].learnt["edges"] == fitted.columns[0].learnt["edges"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"There is no file .*p\.json"),
        ("{", r"p\.json is not a file of learnt preprocessing, or it is damaged"),
        ("[]", r"is not a file of learnt preprocessing"),
        ('{"format": 1, "columns": [{"nome": "a"}]}', r"is not a file of learnt preprocessing"),
        ('{"format": 99, "columns": []}', r"has format 99; this version reads 1"),
    ],
)
def test_files_that_are_none(tmp_path, content, message):
    if content is not None:
        (tmp_path / "p.json").write_text(content)
    with pytest.raises(UserError, match=message):
        Preprocessing.load(tmp_path / "p.json")


def test_the_file_can_be_read_by_people(fitted, tmp_path):
    fitted.save(tmp_path / "p.json")
    columns = {c["name"]: c for c in json.loads((tmp_path / "p.json").read_text())["columns"]}
    assert columns["native country"]["learnt"]["vocabulary"] == ["a", "b"]
    assert columns["age"]["learnt"]["edges"] == [15.0, 25.0, 35.0]


def test_missing_columns_are_named(fitted):
    with pytest.raises(
        UserError, match=r'The model needs column "age", which is no column of new.csv. Did you mean "aged"'
    ):
        fitted.encode(TRAIN.rename_columns(["aged" if c == "age" else c for c in TRAIN.column_names]), "new.csv")
    with pytest.raises(UserError, match=r'The schema needs column "gone"'):
        Preprocessing.fit(TRAIN, Schema(TASKS, categorical={"gone": {}}))


def test_lists_where_there_were_none_and_the_other_way_round(fitted):
    with pytest.raises(UserError, match=r'"code" of the table holds lists, but held one value a row'):
        fitted.encode(TRAIN.set_column(TRAIN.column_names.index("code"), "code", pa.array([[1]] * 6)))
    with pytest.raises(UserError, match=r'"tags" of the table is of type string, but held lists'):
        fitted.encode(TRAIN.set_column(TRAIN.column_names.index("tags"), "tags", pa.array(["x"] * 6)))


def test_columns_that_do_not_fit_the_schema():
    with pytest.raises(UserError, match=r'"native country" .* is of type string and cannot be numeric'):
        Preprocessing.fit(TRAIN, Schema(TASKS, numeric={"native country": {}}))
    empty = pa.table({"x": pa.nulls(2, pa.float64()), "y": [0, 1]})
    with pytest.raises(UserError, match=r'"x" .* holds no number to standardise'):
        Preprocessing.fit(empty, Schema(TASKS, numeric={"x": {"transform": "project"}}))


def test_a_column_without_any_known_value_is_a_warning(fitted):
    rows = 100
    table = pa.table({name: [TRAIN[name][0].as_py()] * rows for name in TRAIN.column_names})
    fitted.encode(table)
    strange = table.set_column(0, "native country", pa.array(["A"] * rows))
    with pytest.warns(
        GradAlignWarning,
        match=r"No value of column \"native country\" of new.csv was seen in training .the first is 'A'",
    ):
        fitted.encode(strange, "new.csv")


def test_text_columns_are_to_be_read_as_text(fitted):
    assert fitted.types == {"native country": "string"}


def test_column_names_become_names_of_inputs():
    columns = ["年龄", "a b", "a-b", "a_b", "class", "1st", "ok", "_x", "encode_ok"]
    table = pa.table({**{c: ["u", "v"] * 2 for c in columns}, "y": [0, 1, 0, 1]})
    preprocessing = Preprocessing.fit(table, infer_schema(table, TASKS))
    fields = {c.name: c.field for c in preprocessing.columns}
    assert fields == {
        "年龄": "column_0",
        "a b": "a_b_",
        "a-b": "a_b__",
        "a_b": "a_b",
        "class": "column_class",
        "1st": "column_1st",
        "ok": "ok",
        "_x": "x",
        "encode_ok": "encode_ok",
    }
    assert set(preprocessing.encode(table)) == set(fields.values())


def test_the_field_that_says_missing_takes_no_other_name():
    table = pa.table({"x": [1.0, None, 2.0], "x_is_missing": ["a", "a", "b"], "y": [0, 1, 0]})
    schema = infer_schema(table, TASKS, {"numeric": {"x": {"transform": "project"}}})
    assert list(Preprocessing.fit(table, schema).fields) == ["x", "x_is_missing_", "x_is_missing"]


def test_whole_numbers_that_came_as_floats():
    table = pa.table({"code": [1.0, 1.0, None, 2.0, 2.0], "y": [0, 1, 0, 1, 0]})
    preprocessing = Preprocessing.fit(table, infer_schema(table, TASKS, {"categorical": ["code"]}))
    assert preprocessing.encode(table)["code"].tolist() == [2, 2, 0, 3, 3]
    assert preprocessing.encode(pa.table({"code": [2, 5]}))["code"].tolist() == [3, 1]


def test_floatx_sets_the_type_of_projected_numbers():
    keras.config.set_floatx("float64")
    preprocessing = Preprocessing.fit(TRAIN, infer_schema(TRAIN, TASKS, FEATURES))
    assert preprocessing.encode(TRAIN)["weight"].dtype == np.float64


def test_mixed_precision_does_not_round_the_inputs():
    keras.config.set_dtype_policy("mixed_float16")
    preprocessing = Preprocessing.fit(TRAIN, infer_schema(TRAIN, TASKS, FEATURES))
    assert preprocessing.encode(TRAIN)["weight"].dtype == np.float32


def test_the_model_takes_ragged_raw_lists(fitted):
    raw = fitted.raw(TRAIN)
    raw["tags"] = tf.RaggedTensor.from_row_lengths(["x", "y", "x", "y", "rare"], [2, 0, 0, 1, 1, 1])
    assert fitted.model(raw)["tags"].to_list() == [[2, 3], [], [], [2], [3], [1]]


def test_the_model_survives_a_keras_file(fitted, tmp_path):
    fitted.model.save(tmp_path / "p.keras")
    loaded = keras.models.load_model(tmp_path / "p.keras")
    raw = fitted.raw(TRAIN)
    for name, values in fitted.model(raw).items():
        np.testing.assert_array_equal(loaded(raw)[name], values)


def test_served_it_scores_raw_columns_the_same(fitted, tmp_path):
    """In a process with TensorFlow alone it does so too: `test_cli_scores.py`."""
    base = shared_private(fitted.fields, ["t", "s"], towers=(4,))
    inputs = {name: keras.Input(i.shape[1:], dtype=i.dtype, name=name) for name, i in fitted.model.input.items()}
    keras.Model(inputs, base(fitted.model(inputs))).export(tmp_path / "serving", verbose=False)
    serve = tf.saved_model.load(tmp_path / "serving").signatures["serving_default"]
    raw = fitted.raw(TRAIN)
    want = base.predict(fitted.encode(TRAIN), verbose=0)
    for rows in (6, 1):
        found = serve(**{name: tf.constant(values[:rows]) for name, values in raw.items()})
        for task in ("t", "s"):
            np.testing.assert_allclose(found[task], want[task][:rows], atol=1e-6)
