import pytest

from gradalign.data import Schema, TaskSpec
from gradalign.errors import UserError

TASKS = {"click": TaskSpec("clicked")}


def test_positive_values_become_a_tuple():
    assert TaskSpec("y", "a").positive == ("a",)
    assert TaskSpec("y", ["a", "b"]).positive == ("a", "b")
    assert TaskSpec("y").positive == (1,)
    assert TaskSpec("y", False).positive == (False,)


@pytest.mark.parametrize("positive", [[], None, [None], [["a"]], [{}]])
def test_a_task_without_a_positive_value_is_refused(positive):
    with pytest.raises(UserError, match=r'label "y" needs its positive value'):
        TaskSpec("y", positive)


def test_options_are_filled_in():
    schema = Schema(
        TASKS,
        numeric={"a": {}, "b": {"buckets": 4}, "c": {"transform": "project"}},
        categorical={"d": None, "e": {"max_size": 9}},
        multi_valued={"f": {"min_count": 1}},
        drop=["g"],
    )
    assert schema.numeric == {
        "a": {"transform": "bucket", "buckets": 16},
        "b": {"transform": "bucket", "buckets": 4},
        "c": {"transform": "project"},
    }
    assert schema.categorical == {"d": {"min_count": 2, "max_size": None}, "e": {"min_count": 2, "max_size": 9}}
    assert schema.multi_valued == {"f": {"min_count": 1, "max_size": None, "max_length": 50}}
    assert schema.columns == ("a", "b", "c", "d", "e", "f")
    assert [schema.kind(c) for c in "adf"] == ["numeric", "categorical", "multi_valued"]
    with pytest.raises(KeyError):
        schema.kind("g")


def test_the_features_of_a_schema_give_it_again():
    schema = Schema(TASKS, numeric={"a": {"transform": "project"}}, categorical={"d": {}}, drop=("g",))
    features = schema.features()
    assert Schema(TASKS, **features) == schema
    assert features["drop"] == ["g"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"numeric": {"clicked": {}}},
            r'"clicked" is the label of task "click" and cannot be a feature.*features.numeric',
        ),
        ({"categorical": {"clicked": {}}}, r"cannot be a feature; take it out of `features.categorical`"),
        ({"numeric": {"a": {}}, "categorical": {"a": {}}}, r'"a" is named under both `features.numeric` and'),
        ({"numeric": {"a": {}}, "drop": ("a",)}, r'"a" is named under both `features.drop` and `features.numeric`'),
        ({"numeric": {"click": {}}}, r'Task "click" has the name of a feature column'),
        ({"numeric": {"a": {"bucket": 3}}}, r'has no option "bucket".*Did you mean "buckets"'),
        ({"categorical": {"a": {"buckets": 3}}}, r'`features.categorical.a` has no option "buckets"'),
        ({"numeric": {"a": {"transform": "log"}}}, r"must be \"bucket\" or \"project\", received 'log'"),
        ({"numeric": {"a": {"transform": "project", "buckets": 3}}}, r"`buckets` is for the bucket transform only"),
        ({"numeric": {"a": {"buckets": 1}}}, r"`buckets` must be a whole number of at least 2, received 1"),
        ({"numeric": {"a": {"buckets": 2.5}}}, r"received 2.5"),
        ({"categorical": {"a": {"min_count": 0}}}, r"`min_count` must be a whole number of at least 1, received 0"),
        ({"categorical": {"a": {"max_size": 0}}}, r"`max_size` must be .* received 0"),
        ({"multi_valued": {"a": {"max_length": True}}}, r"`max_length` must be .* received True"),
        ({"numeric": {"a": 16}}, r"`features.numeric.a` must be a mapping of options .* received 16"),
    ],
)
def test_wrong_features_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        Schema(TASKS, **arguments)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({}, "no task"),
        ({"buy it": TaskSpec("y")}, "received 'buy it'"),
        ({"buy": "y"}, 'Task "buy" must be a TaskSpec'),
    ],
)
def test_wrong_tasks_are_named(tasks, message):
    with pytest.raises(UserError, match=message):
        Schema(tasks)


def test_the_description_holds_every_column_and_reason():
    schema = Schema(
        {"click": TaskSpec("clicked", ("yes", "maybe"))},
        numeric={"age": {}, "size": {}},
        categorical={"city": {}},
        drop=("when",),
        reasons={"city": "categorical: text, 3 values"},
    )
    text = schema.describe()
    assert 'task click: column "clicked" is yes or maybe' in text
    assert "2 numeric columns: age, size" in text
    assert "1 categorical column: city" in text
    assert "1 left out: when" in text
    assert "city  categorical: text, 3 values" in text
