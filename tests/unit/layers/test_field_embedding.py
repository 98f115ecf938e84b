import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.layers import Categorical, FieldEmbedding, MultiValued, Numeric

# Kinds are mixed on purpose: the output must follow this order, not the order of kinds.
FIELDS = {
    "tags": MultiValued(4),
    "city": Categorical(3),
    "age": Numeric(),
    "zip": Categorical(2),
    "words": MultiValued(3, padding_id=2),
    "height": Numeric(),
}
DIM = 2


def batch():
    return {
        "tags": np.array([[3, 1, 0], [0, 0, 0]]),
        "city": np.array([2, 0]),
        "age": np.array([0.5, -2.0], "float32"),
        "zip": np.array([1, 0]),
        "words": np.array([[0, 2], [0, 1]]),
        "height": np.array([10.0, 0.0], "float32"),
    }


def ragged_batch():
    return {
        **{k: tf.constant(v) for k, v in batch().items()},
        "tags": tf.RaggedTensor.from_row_lengths([3, 1], [2, 0]),
        "words": tf.RaggedTensor.from_row_lengths([0, 0, 1], [1, 2]),
    }


def known_layer(**kwargs):
    """Row r of the table is (r, 10 r), those of the projection are (1, 2) and (3, 4)."""
    layer = FieldEmbedding(FIELDS, DIM, **kwargs)
    layer.build(None)
    rows = np.arange(4 + 3 + 2 + 3)
    layer.set_weights([np.stack([rows, 10 * rows], 1), np.array([[1, 2], [3, 4]])])
    return layer


# Offsets: tags 0, city 4, zip 7, words 9.
EXPECTED = [
    # tags: mean of rows 3, 1; city 4 + 2; age 0.5 (1, 2); zip 7 + 1; words: row 9 (2 is padding); height 10 (3, 4)
    [2, 20, 6, 60, 0.5, 1, 8, 80, 9, 90, 30, 40],
    # tags: nothing; city 4; age -2 (1, 2); zip 7; words: mean of rows 9, 10; height 0
    [0, 0, 4, 40, -2, -4, 7, 70, 9.5, 95, 0, 0],
]


def test_values_by_hand():
    np.testing.assert_allclose(known_layer()(batch()), EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_values_in_a_traced_function(jit):
    layer = known_layer()
    inputs = {k: tf.constant(v) for k, v in batch().items()}
    np.testing.assert_allclose(tf.function(layer, jit_compile=jit)(inputs), EXPECTED, rtol=1e-6)


def test_ragged_rows_equal_padded_rows():
    np.testing.assert_allclose(known_layer()(ragged_batch()), EXPECTED, rtol=1e-6)
    np.testing.assert_allclose(tf.function(known_layer())(ragged_batch()), EXPECTED, rtol=1e-6)


def test_a_padding_id_inside_a_ragged_row_is_padding():
    inputs = {**ragged_batch(), "tags": tf.RaggedTensor.from_row_lengths([3, 0, 1, 0], [3, 1])}
    np.testing.assert_allclose(known_layer()(inputs), EXPECTED, rtol=1e-6)


def test_more_padding_changes_nothing():
    inputs = {**batch(), "tags": np.pad(batch()["tags"], ((0, 0), (2, 5)))}
    np.testing.assert_allclose(known_layer()(inputs), EXPECTED, rtol=1e-6)


def test_columns_of_width_one_are_taken_as_single_values():
    inputs = {k: v[:, None] if v.ndim == 1 else v for k, v in batch().items()}
    np.testing.assert_allclose(known_layer()(inputs), EXPECTED, rtol=1e-6)


def test_weights_are_one_table_and_one_projection():
    layer = known_layer()
    assert {w.name: tuple(w.shape) for w in layer.weights} == {"table": (12, 2), "projection": (2, 2)}
    only_ids = FieldEmbedding({"city": Categorical(3)}, 2)
    only_ids.build(None)
    assert [w.name for w in only_ids.weights] == ["table"]
    only_numbers = FieldEmbedding({"age": Numeric()}, 2)
    only_numbers.build(None)
    assert [w.name for w in only_numbers.weights] == ["projection"]


def test_any_order_of_fields_gives_the_same_embedding_per_field():
    rng = np.random.default_rng(0)
    layer = known_layer()
    whole = layer(batch()).numpy().reshape(2, len(FIELDS), DIM)
    offsets = {"tags": 0, "city": 4, "zip": 7, "words": 9}
    for _ in range(5):
        order = list(rng.permutation(list(FIELDS)))
        other = FieldEmbedding({name: FIELDS[name] for name in order}, DIM)
        other.build(None)
        table, projection = layer.get_weights()
        rows = [table[offsets[n] + i] for n in order if n in offsets for i in range(FIELDS[n].size)]
        numeric = [projection[["age", "height"].index(n)] for n in order if n not in offsets]
        other.set_weights([np.array(rows), np.array(numeric)])
        got = other(batch()).numpy().reshape(2, len(FIELDS), DIM)
        for place, name in enumerate(order):
            np.testing.assert_array_equal(got[:, place], whole[:, list(FIELDS).index(name)])


def test_all_fields_cost_one_read_of_the_table():
    layer = FieldEmbedding({f"f{i}": (Categorical, MultiValued)[i % 2](5) for i in range(20)}, 4)
    ids = {f"f{i}": tf.constant([1, 2] if i % 2 == 0 else [[1, 2], [2, 0]]) for i in range(20)}
    layer(ids)
    graph = tf.function(layer).get_concrete_function(ids).graph
    assert [op.type for op in graph.get_operations()].count("ResourceGather") == 1


@pytest.mark.parametrize(("name", "bad"), [("city", 3), ("city", -1), ("zip", 2), ("tags", 4), ("words", -1)])
def test_an_id_out_of_range_never_reads_another_field(name, bad):
    inputs = batch()
    inputs[name] = np.full_like(inputs[name], bad)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        known_layer()(inputs)


def test_the_table_gradient_is_sparse_and_right():
    layer = known_layer()
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(batch()))
    table, projection = tape.gradient(total, layer.trainable_variables)
    assert isinstance(table, tf.IndexedSlices)
    dense = tf.convert_to_tensor(table).numpy()
    # Row r is used: tags 3 and 1 by half each; city 6 and 4; zip 8 and 7; words 9 by 1 + 1/2, 10 by 1/2.
    expected = {1: 0.5, 3: 0.5, 4: 1, 6: 1, 7: 1, 8: 1, 9: 1.5, 10: 0.5}
    np.testing.assert_allclose(dense, [[expected.get(r, 0)] * 2 for r in range(12)], rtol=1e-6)
    np.testing.assert_allclose(projection, [[-1.5, -1.5], [10, 10]], rtol=1e-6)


@pytest.mark.parametrize(("jit", "ragged"), [(False, False), (False, True), (True, False)])  # XLA knows no ragged
def test_the_table_gradient_holds_each_row_once(jit, ragged):
    """However often a batch looks a row up, so that optimizers which square a gradient square the sum."""
    layer = known_layer()
    given = ragged_batch() if ragged else {k: tf.constant(v) for k, v in batch().items()}
    inputs = {k: tf.concat([v, v], axis=0) for k, v in given.items()}

    @tf.function(jit_compile=jit)
    def gradient():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layer(inputs) ** 2)
        slices = tape.gradient(total, layer.table.value)
        return slices.indices, slices.values

    rows, values = gradient()
    assert len(set(rows.numpy())) == len(rows) == len(values)
    # d/dr of the squares at city 4 = (4, 40), which two rows look up, and of zip 8 = (8, 80).
    found = dict(zip(rows.numpy().tolist(), values.numpy().tolist(), strict=True))
    assert found[4] == pytest.approx([16, 160]) and found[8] == pytest.approx([32, 320])


@pytest.mark.parametrize("ragged", [False, True])
def test_the_second_derivative_equals_a_finite_difference(ragged):
    """Of |d f / d s|^2 / 2 with f = sum(s^3): its derivative by the table, along a random direction."""
    keras.config.set_floatx("float64")
    layer = FieldEmbedding(FIELDS, DIM, embeddings_initializer=keras.initializers.RandomNormal(seed=1))
    inputs = ragged_batch() if ragged else {k: tf.constant(v) for k, v in batch().items()}
    layer(inputs)

    def penalty():
        s = layer(inputs)
        with tf.GradientTape() as inner:
            inner.watch(s)
            f = tf.reduce_sum(s**3)
        return tf.reduce_sum(inner.gradient(f, s) ** 2) / 2

    with tf.GradientTape() as tape:
        value = penalty()
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(value, layer.trainable_variables)]
    start = layer.get_weights()
    rng = np.random.default_rng(2)
    directions = [rng.normal(size=w.shape) for w in start]
    step = 1e-5
    sides = []
    for sign in (1, -1):
        layer.set_weights([w + sign * step * d for w, d in zip(start, directions, strict=True)])
        sides.append(float(penalty()))
    slope = sum(float(tf.reduce_sum(g * d)) for g, d in zip(gradients, directions, strict=True))
    assert abs(slope) > 1e-6
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
def test_the_output_has_the_compute_type(dtype):
    layer = known_layer(dtype=dtype)
    output = layer(batch())
    assert output.dtype == layer.compute_dtype
    assert layer.table.dtype == layer.variable_dtype
    np.testing.assert_allclose(tf.cast(output, tf.float64), EXPECTED, rtol=2e-2)


def test_a_half_precision_policy_does_not_densify_the_table_gradient():
    layer = known_layer(dtype="mixed_bfloat16")
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(batch()))
    assert isinstance(tape.gradient(total, layer.table.value), tf.IndexedSlices)


def test_it_survives_its_config_and_keeps_the_order_of_fields():
    layer = FieldEmbedding(FIELDS, DIM, name="shared_embedding", embeddings_initializer="zeros")
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert list(copy.fields.items()) == list(FIELDS.items())
    assert (copy.dim, copy.name) == (DIM, "shared_embedding")
    assert isinstance(copy.embeddings_initializer, keras.initializers.Zeros)
    assert copy.get_config() == layer.get_config()


def test_output_shape_without_a_call():
    shapes = {name: (None, None) if name in ("tags", "words") else (None,) for name in FIELDS}
    assert FieldEmbedding(FIELDS, DIM).compute_output_shape(shapes) == (None, 12)


@pytest.mark.parametrize("dim", [0, -2, 1.5, True, None])
def test_a_bad_width_is_quoted(dim):
    with pytest.raises(ValueError, match=f"`dim` .* received {dim!r}"):
        FieldEmbedding(FIELDS, dim)


def test_a_missing_or_unknown_field_is_named():
    layer = known_layer()
    inputs = batch()
    inputs["citty"] = inputs.pop("city")
    with pytest.raises(ValueError, match=r'needs field "city". Did you mean "citty"'):
        layer(inputs)
    with pytest.raises(ValueError, match=r'has no field "citi". Did you mean "city"'):
        layer({**batch(), "citi": np.array([0, 0])})
    with pytest.raises(TypeError, match="takes a dict"):
        layer(np.array([[0, 1]]))


def test_a_matrix_for_a_single_valued_field_is_refused():
    with pytest.raises(ValueError, match=r"shape \(B,\) or \(B, 1\), received \(2, 2\)"):
        known_layer()({**batch(), "city": np.zeros((2, 2), "int32")})
