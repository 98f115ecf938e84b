import datetime

import numpy as np
import pyarrow as pa
import pytest

from gradalign.data import Schema, TaskSpec, infer_schema
from gradalign.data.inference import MAX_CODES
from gradalign.errors import UserError

ROWS = 200
RNG = np.random.default_rng(0)
COLUMNS = {
    "text": pa.array(RNG.choice(["a", "b"], ROWS)),
    "few": pa.array(np.arange(ROWS) % MAX_CODES),
    "many": pa.array(np.arange(ROWS) % (MAX_CODES + 1)),
    "user_id": pa.array(np.arange(ROWS)),
    "flag": pa.array(np.arange(ROWS) % 2 == 0),
    "fraction": pa.array(RNG.normal(size=ROWS)),
    "money": pa.array(np.ones(ROWS)).cast(pa.decimal128(9, 2)),
    "tags": pa.array([["a"], None] * (ROWS // 2)),
    "items": pa.array([[1, 2], []] * (ROWS // 2), pa.list_(pa.int64())),
    "vector": pa.array([[0.5, 0.1]] * ROWS),
    "when": pa.array([datetime.datetime(2020, 1, 1)] * ROWS),
    "nested": pa.array([{"a": 1}] * ROWS),
    "empty": pa.nulls(ROWS),
    "nothing": pa.nulls(ROWS, pa.string()),
    "words": pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
    "y": pa.array([0, 1] * (ROWS // 2)),
}
TABLE = pa.table(COLUMNS)
TASKS = {"t": TaskSpec("y")}


def kind_of(schema: Schema, column: str) -> str:
    return "drop" if column in schema.drop else schema.kind(column)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("text", "categorical"),
        ("few", "categorical"),
        ("many", "numeric"),
        ("user_id", "categorical"),
        ("flag", "categorical"),
        ("fraction", "numeric"),
        ("money", "numeric"),
        ("tags", "multi_valued"),
        ("items", "multi_valued"),
        ("vector", "drop"),
        ("when", "drop"),
        ("nested", "drop"),
        ("empty", "drop"),
        ("nothing", "drop"),
        ("words", "categorical"),
    ],
)
def test_each_type_of_column(column, kind):
    schema = infer_schema(TABLE, TASKS)
    assert kind_of(schema, column) == kind
    assert column in schema.reasons
    assert f"  {column} " in schema.describe()


def test_the_label_is_no_feature():
    schema = infer_schema(TABLE, TASKS)
    assert "y" not in schema.columns and "y" not in schema.drop


def test_what_is_named_is_not_inferred():
    schema = infer_schema(
        TABLE, TASKS, {"drop": ["text"], "numeric": ["few"], "categorical": {"many": {"min_count": 3}, "words": {}}}
    )
    assert (kind_of(schema, "text"), kind_of(schema, "few"), kind_of(schema, "many")) == (
        "drop",
        "numeric",
        "categorical",
    )
    assert schema.categorical["many"] == {"min_count": 3, "max_size": None}
    assert not {"text", "few", "many", "words"} & set(schema.reasons)


def test_a_resolved_schema_infers_nothing_and_is_the_same():
    schema = infer_schema(TABLE, TASKS)
    again = infer_schema(TABLE, TASKS, schema.features())
    assert again == schema
    assert not again.reasons


@pytest.mark.parametrize("name", ["id", "user_id", "item_ids", "userId", "itemID"])
def test_names_of_identifiers(name):
    table = pa.table({name: range(ROWS), "y": COLUMNS["y"]})
    assert list(infer_schema(table, TASKS).categorical) == [name]


@pytest.mark.parametrize("name", ["paid", "humid", "ideal", "GRID"])
def test_names_that_only_look_like_identifiers(name):
    table = pa.table({name: range(ROWS), "y": COLUMNS["y"]})
    assert list(infer_schema(table, TASKS).numeric) == [name]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"numeric": ["fracton"]},
            r'`features.numeric` names "fracton", which is no column .* Did you mean "fraction"',
        ),
        ({"drop": ["whem"]}, r'`features.drop` names "whem".*Did you mean "when"'),
        ({"numerics": {}}, r'`features` has no key "numerics".*Did you mean "numeric"'),
        ({"numeric": "few"}, r"`features.numeric` must name columns in a list, received 'few'"),
        (
            {"numeric": ["text"]},
            r'"text" .* is of type string and cannot be numeric; name it under `features.categorical`',
        ),
        ({"numeric": ["when"]}, r"cannot be numeric; name it under `features.drop`"),
        ({"categorical": ["tags"]}, r"cannot be categorical; name it under `features.multi_valued`"),
        ({"multi_valued": ["text"]}, r"cannot be multi-valued; name it under `features.categorical`"),
        ({"categorical": ["fraction"]}, r'"fraction" .* holds fractions and cannot be categorical.*features.numeric'),
        ({"multi_valued": ["vector"]}, r"holds fractions and cannot be multi-valued; name it under `features.drop`"),
        ({"numeric": ["y"]}, r'"y" is the label of task "t" and cannot be a feature'),
        ({"numeric": ["few"], "categorical": ["few"]}, r'"few" is named under both'),
        ([], r"no column"),
    ],
)
def test_wrong_features_end_in_one_sentence(features, message):
    if features == []:  # nothing said, and nothing there
        with pytest.raises(UserError, match="No column of the training table is left as a feature"):
            infer_schema(TABLE.select(["y", "empty"]), TASKS)
        return
    with pytest.raises(UserError, match=message) as caught:
        infer_schema(TABLE, TASKS, features)
    assert "\n" not in str(caught.value)


def test_labels_are_checked_first():
    with pytest.raises(UserError, match=r'Task "t": the positive value 3 never occurs'):
        infer_schema(TABLE, {"t": TaskSpec("y", 3)})
    with pytest.raises(UserError, match=r'needs the label column "z", which is no column of train.csv'):
        infer_schema(TABLE, {"t": TaskSpec("z")}, source="train.csv")


def test_whole_numbers_that_came_as_floats_may_be_categorical():
    table = pa.table({"code": [1.0, 2.0, None, float("nan")], "y": [0, 1, 0, 1]})
    assert list(infer_schema(table, TASKS, {"categorical": ["code"]}).categorical) == ["code"]
