import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.data import BucketIds, IsMissing, Standardize, VocabularyIds

INT32_MIN, INT64_MIN = np.iinfo("int32").min, np.iinfo("int64").min
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("vocabulary", "raw", "values", "expected"),
    [
        (["b", "年"], "string", ["年", "b", "", "x"], [3, 2, 0, 1]),
        ([], "string", ["a", ""], [1, 0]),
        ([7, -1], "int32", [-1, 7, INT32_MIN, 3], [3, 2, 0, 1]),
        ([7, 2**60], "int64", [2**60, 7, INT64_MIN, INT32_MIN], [3, 2, 0, 1]),
        ([7, 0], "float64", [0.0, 7.0, NAN, 7.5, INF, -INF, 1e300, -0.0], [3, 2, 0, 1, 1, 1, 1, 3]),
        ([7], "float32", [7.0, NAN], [2, 0]),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_vocabulary_ids_by_hand(vocabulary, raw, values, expected, traced):
    layer = VocabularyIds(vocabulary, raw)
    ids = (tf.function(layer) if traced else layer)(tf.constant(values, raw))
    assert ids.dtype == tf.int32
    assert ids.numpy().tolist() == expected
    assert layer.size == len(vocabulary) + 2


def test_a_missing_value_in_the_vocabulary_is_refused_or_harmless():
    with pytest.raises(ValueError, match="must not hold a value twice"):
        VocabularyIds(["a", "a"], "string")


@pytest.mark.parametrize(
    ("vocabulary", "raw", "message"),
    [
        (["a"], "text", "`raw` must be one of string, int32.*received 'text'"),
        (["a"], "int32", "must hold int values, received 'a'"),
        ([1], "string", "must hold str values, received 1"),
        ([True], "int32", "received True"),
    ],
)
def test_a_bad_vocabulary_is_quoted(vocabulary, raw, message):
    with pytest.raises(ValueError, match=message):
        VocabularyIds(vocabulary, raw)


def test_lists_are_cut_and_ragged_lists_are_taken():
    layer = VocabularyIds(["a", "b"], "string", max_length=2)
    padded = tf.constant([["b", "a", "a"], ["x", "", ""]])
    assert layer(padded).numpy().tolist() == [[3, 2], [1, 0]]
    ragged = layer(tf.RaggedTensor.from_row_lengths(["b", "a", "a", "x"], [3, 1]))
    assert ragged.to_list() == [[3, 2], [1]]


@pytest.mark.parametrize("seed", range(3))
def test_ids_are_those_of_a_dictionary(seed):
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in rng.permutation(200)]
    vocabulary, asked = words[:100], rng.choice([*words, ""], 1000)
    ids = VocabularyIds(vocabulary, "string")(tf.constant(asked.tolist())).numpy()
    known = {"": 0, **{w: i + 2 for i, w in enumerate(vocabulary)}}
    assert ids.tolist() == [known.get(w, 1) for w in asked]


@pytest.mark.parametrize(
    ("edges", "raw", "values", "expected"),
    [
        ([0.5, 2.0], "float32", [0.0, 0.5, 1.9, 2.0, NAN, INF, -INF], [1, 2, 2, 3, 0, 3, 1]),
        ([0.5], "int32", [0, 1, INT32_MIN, INT32_MIN + 1], [1, 2, 0, 1]),
        ([0.5], "int64", [2**62, INT64_MIN], [2, 0]),
        ([], "float64", [1.0, NAN], [1, 0]),
        ([1.0 + 1e-12], "float64", [1.0, 1.0 + 2e-12], [1, 2]),  # lost if the column were cast to float32
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_bucket_ids_by_hand(edges, raw, values, expected, traced):
    layer = BucketIds(edges, raw)
    ids = (tf.function(layer) if traced else layer)(tf.constant(values, raw))
    assert ids.dtype == tf.int32
    assert ids.numpy().tolist() == expected
    assert layer.size == len(edges) + 2


@pytest.mark.parametrize("edges", [[1.0, 1.0], [2.0, 1.0], [NAN], [INF]])
def test_edges_must_ascend(edges):
    with pytest.raises(ValueError, match="must be finite and ascend"):
        BucketIds(edges, "float32")


def test_text_is_no_number():
    with pytest.raises(ValueError, match="must be a number's type"):
        BucketIds([1.0], "string")
    with pytest.raises(ValueError, match="must be a number's type"):
        Standardize(0, 1, 0, 1, "string")


@pytest.mark.parametrize("raw", ["float32", "float64", "int32", "int64"])
def test_standardising_by_hand(raw):
    layer = Standardize(mean=2.0, scale=4.0, low=-2.0, high=10.0, raw=raw)
    missing = NAN if "float" in raw else np.iinfo(raw).min
    values = tf.constant([2, 6, -2, 99, -99, missing], raw)
    assert layer(values).numpy().tolist() == [0.0, 1.0, -1.0, 2.0, -1.0, 0.0]
    if "float" in raw:
        assert layer(tf.constant([INF, -INF], raw)).numpy().tolist() == [2.0, -1.0]


def test_standardising_far_from_zero_is_exact_to_the_last_place_of_the_result():
    layer = Standardize(mean=1e9, scale=1.0, low=1e9 - 5, high=1e9 + 5, raw="float64")
    assert layer(tf.constant([1e9 + 0.5], tf.float64)).numpy().tolist() == [0.5]


def test_standardising_has_its_own_type():
    assert Standardize(0, 1, 0, 1, "float32", dtype="float64")(tf.constant([0.5])).dtype == tf.float64


@pytest.mark.parametrize("bad", [{"scale": 0.0}, {"scale": -1.0}, {"mean": NAN}, {"low": 2.0, "high": 1.0}])
def test_bad_standardising_is_quoted(bad):
    arguments = {"mean": 0.0, "scale": 1.0, "low": 0.0, "high": 1.0, **bad}
    with pytest.raises(ValueError, match="received mean="):
        Standardize(**arguments, raw="float32")


def test_is_missing():
    assert IsMissing("int32")(tf.constant([0, INT32_MIN])).numpy().tolist() == [0, 1]
    assert IsMissing("string")(tf.constant(["", "a"])).numpy().tolist() == [1, 0]


@pytest.mark.parametrize(
    "layer",
    [
        VocabularyIds(["b", "a"], "string", max_length=3, name="x"),
        VocabularyIds([2**60], "int64"),
        BucketIds([0.1, 1 / 3], "float64"),
        Standardize(1 / 3, 0.1, -1.0, 2.0, "float32"),
        IsMissing("string"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_config_round_trip(layer):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(copy) is type(layer)
    assert copy.get_config() == layer.get_config()
    assert not copy.trainable_weights
