"""Recording of a layer's output in the one forward pass of any kind of model."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients import find_layers, layer_paths, record_outputs

Dense = keras.layers.Dense
X = tf.constant([[1.0, 2.0], [3.0, 4.0]])


def ones(units, name, **kwargs):
    return Dense(units, use_bias=False, kernel_initializer="ones", name=name, **kwargs)


def functional():
    """x to encoder (3 per row: sums of x) to {a, b}."""
    x = keras.Input((2,), name="x")
    s = ones(3, "encoder")(x)
    return keras.Model(x, {"a": ones(1, "a")(s), "b": ones(1, "b")(s)}, name="base")


def nested():
    x = keras.Input((2,), name="x")
    inner_x = keras.Input((2,), name="inner_x")
    inner = keras.Model(inner_x, ones(3, "encoder")(inner_x), name="trunk")
    return keras.Model(x, ones(1, "head")(inner(x)), name="outer")


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.in_list = [ones(2, "first"), ones(3, "second")]
        self.in_dict = {"a": ones(1, "head_a"), "b": ones(1, "head_b")}
        self.unused = ones(1, "unused")

    def call(self, x):
        for layer in self.in_list:
            x = layer(x)
        return {task: head(x) for task, head in self.in_dict.items()}


def outputs_of(model, shared, x=X):
    with record_outputs(find_layers(model, shared)) as recorded:
        model(x)
    return {path: [t.numpy().tolist() for t in tensors] for path, tensors in recorded.items()}


SUMS = [[3.0, 3.0, 3.0], [7.0, 7.0, 7.0]]


def test_by_name():
    assert outputs_of(functional(), "encoder") == {"encoder": [SUMS]}


def test_by_layer_object():
    model = functional()
    assert outputs_of(model, model.get_layer("encoder")) == {"encoder": [SUMS]}


def test_by_path_and_by_the_only_inner_name():
    assert outputs_of(nested(), "trunk/encoder") == {"trunk/encoder": [SUMS]}
    assert outputs_of(nested(), "encoder") == {"trunk/encoder": [SUMS]}
    assert outputs_of(nested(), "trunk") == {"trunk": [SUMS]}


def test_a_list_keeps_its_order():
    model = functional()
    assert outputs_of(model, ["b", model.get_layer("encoder")]) == {"b": [[[9.0], [21.0]]], "encoder": [SUMS]}


def test_layers_in_lists_and_dicts_of_a_subclassed_model():
    model = Subclassed(name="sub")
    model(X)
    assert set(layer_paths(model)) == {"first", "second", "head_a", "head_b", "unused"}
    assert outputs_of(model, "second") == {"second": [[[6.0] * 3, [14.0] * 3]]}
    assert outputs_of(model, "head_b") == {"head_b": [[[18.0], [42.0]]]}


def test_in_a_sequential_model():
    model = keras.Sequential([keras.Input((2,)), ones(3, "encoder"), ones(1, "head")])
    assert outputs_of(model, "encoder") == {"encoder": [SUMS]}


def test_an_operation_of_a_functional_graph():
    x = keras.Input((2,), name="x")
    joined = keras.ops.concatenate([ones(1, "left")(x), ones(2, "right")(x)], axis=-1)
    model = keras.Model(x, ones(1, "head")(joined))
    operation = joined._keras_history.operation
    for shared in (operation.name, operation):
        assert outputs_of(model, shared) == {operation.name: [SUMS]}


def test_the_rest_of_the_pass_sees_the_transform():
    with record_outputs(find_layers(model := functional(), "encoder"), lambda t: 10.0 * t) as recorded:
        predictions = model(X)
    assert predictions["a"].numpy().tolist() == [[90.0], [210.0]]
    assert recorded["encoder"][0].numpy().tolist() == [[30.0] * 3, [70.0] * 3]


def test_a_layer_with_several_outputs():
    class Pair(keras.layers.Layer):
        def call(self, x):
            return {"one": x, "two": 2.0 * x}

    x = keras.Input((2,))
    pair = Pair(name="pair")(x)
    model = keras.Model(x, keras.layers.Add()([pair["one"], pair["two"]]))
    with record_outputs(find_layers(model, "pair"), lambda t: -t) as recorded:
        prediction = model(X)
    assert [t.numpy().tolist() for t in recorded["pair"]] == [(-X).numpy().tolist(), (-2 * X).numpy().tolist()]
    assert prediction.numpy().tolist() == (-3 * X).numpy().tolist()


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
def test_inside_a_compiled_step(jit):
    model = functional()
    layers = find_layers(model, "encoder")

    @tf.function(jit_compile=jit, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            with record_outputs(layers) as recorded:
                predictions = model(x)
            [s] = recorded["encoder"]
        return s, tape.gradient(predictions["a"], s)

    s, gradient = step(X)
    assert s.numpy().tolist() == SUMS
    assert gradient.numpy().tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("shared", ["table", "trunk"])
def test_masks_survive_the_copy(shared):
    """Steps behind the mask do nothing: as the two real ids alone, and not as four."""
    ids, inner_ids = (keras.Input((None,), dtype="int32", name=name) for name in ("ids", "inner_ids"))
    table = keras.layers.Embedding(5, 3, mask_zero=True, embeddings_initializer="normal", name="table")
    trunk = keras.Model(inner_ids, table(inner_ids), name="trunk")
    rnn = keras.layers.SimpleRNN(2)
    model = keras.Model(ids, rnn(trunk(ids)))
    with record_outputs(find_layers(model, shared), lambda t: tf.identity(t) * 1.0):
        found = model(tf.constant([[1, 2, 0, 0]]))
    vectors = table.embeddings.numpy()
    np.testing.assert_allclose(found, rnn(tf.constant(vectors[[[1, 2]]])), rtol=1e-5)
    assert not np.allclose(found, rnn(tf.constant(vectors[[[1, 2, 0, 0]]])), rtol=1e-3)


def test_unknown_names_get_the_nearest_ones():
    with pytest.raises(UserError, match=r'Model "base" has no layer "encodr".* Did you mean "encoder"?'):
        find_layers(functional(), "encodr")
    with pytest.raises(UserError, match=r'no layer "zzz".* It has: x, encoder, a, b'):
        find_layers(functional(), "zzz")
    with pytest.raises(UserError, match=r'no layer "trunk/encodr".*"trunk/encoder"'):
        find_layers(nested(), "trunk/encodr")


def twins():
    x = keras.Input((2,), name="x")
    branches = []
    for name in ("left", "right"):
        inner = keras.Input((2,))
        branches.append(keras.Model(inner, ones(3, "encoder")(inner), name=name)(x))
    return keras.Model(x, keras.layers.Add()(branches), name="twins")


def test_an_ambiguous_name_lists_the_paths():
    with pytest.raises(UserError, match=r'"encoder" fits 2 layers of model "twins".*left/encoder, right/encoder'):
        find_layers(twins(), "encoder")
    assert outputs_of(twins(), "right/encoder") == {"right/encoder": [SUMS]}


def test_layers_of_one_name_are_numbered():
    subclassed = Subclassed()
    subclassed.in_list = [ones(2, "same"), ones(3, "same")]
    subclassed(X)
    assert {"same", "same#2"} <= set(layer_paths(subclassed))
    assert outputs_of(subclassed, "same#2") == {"same#2": [[[6.0] * 3, [14.0] * 3]]}


def test_the_outermost_name_wins():
    x, inner_x = keras.Input((2,)), keras.Input((2,))
    inner = keras.Model(inner_x, ones(2, "encoder")(inner_x), name="inner")
    model = keras.Model(x, ones(3, "encoder")(inner(x)))
    assert outputs_of(model, "encoder") == {"encoder": [[[6.0] * 3, [14.0] * 3]]}


def test_a_layer_that_the_model_lacks():
    with pytest.raises(UserError, match='"stranger" is not part of model "base"'):
        find_layers(functional(), ones(1, "stranger"))


@pytest.mark.parametrize(
    ("shared", "message"),
    [(3, "received 3"), ([], "names no layer"), (["encoder", "encoder"], '"encoder" twice'), ([None], "received None")],
    ids=str,
)
def test_bad_arguments(shared, message):
    with pytest.raises(UserError, match=message):
        find_layers(functional(), shared)


def test_the_same_layer_by_name_and_by_object_is_named_twice():
    model = functional()
    with pytest.raises(UserError, match='"encoder" twice'):
        find_layers(model, ["encoder", model.get_layer("encoder")])


def is_restored(*layers):
    return all("call" not in vars(layer) for layer in layers)


def test_a_layer_called_twice_is_an_error():
    x, y = keras.Input((2,)), keras.Input((2,))
    encoder = ones(3, "encoder")
    model = keras.Model([x, y], keras.layers.Add()([encoder(x), encoder(y)]))
    with pytest.raises(UserError, match='"encoder" was called twice'), record_outputs(find_layers(model, "encoder")):
        model([X, X])
    assert is_restored(encoder)


def test_a_layer_that_is_not_called_is_an_error():
    model = Subclassed()
    with pytest.raises(UserError, match='"unused" was not called'), record_outputs(find_layers(model, "unused")):
        model(X)
    assert is_restored(model.unused)


class Compiled(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = ones(3, "encoder")

    @tf.function(autograph=False)
    def encode(self, x):
        return self.encoder(x)

    def call(self, x):
        return self.encode(x)


@pytest.mark.parametrize("within", ["eager", "graph"])
def test_a_layer_inside_a_function_of_its_own_is_an_error(within):
    model = Compiled()

    def step():
        with record_outputs(find_layers(model, "encoder")):
            return model(X)

    with pytest.raises(UserError, match=r'"encoder" runs inside a tf.function of its own'):
        (step if within == "eager" else tf.function(step, autograph=False))()
    assert is_restored(model.encoder)


def test_an_output_without_a_gradient_is_an_error():
    ids = keras.Input((1,), dtype="int32")
    hashed = keras.layers.Hashing(4, name="hashed")(ids)
    model = keras.Model(ids, keras.layers.Embedding(4, 2)(hashed))
    with pytest.raises(UserError, match='"hashed" gives int64 values'), record_outputs(find_layers(model, "hashed")):
        model(tf.constant([[1]]))


def test_call_is_restored():
    model = functional()
    encoder = model.get_layer("encoder")
    with record_outputs(find_layers(model, "encoder")):
        assert not is_restored(encoder)
        model(X)
    assert is_restored(encoder)


def test_call_is_restored_after_an_exception_which_is_not_replaced():
    model = functional()
    with pytest.raises(ZeroDivisionError), record_outputs(find_layers(model, "encoder")):
        raise ZeroDivisionError
    assert is_restored(model.get_layer("encoder"))
    assert outputs_of(model, "encoder") == {"encoder": [SUMS]}


def test_a_call_that_was_replaced_by_the_user_is_put_back():
    model = functional()
    encoder = model.get_layer("encoder")
    own = encoder.call

    def doubled(x):
        return 2.0 * own(x)

    object.__setattr__(encoder, "call", doubled)
    assert outputs_of(model, "encoder") == {"encoder": [(2.0 * np.array(SUMS)).tolist()]}
    assert encoder.call is doubled


def test_a_recording_within_a_recording():
    """The inner one takes the layers it names, the outer one the others."""
    model = functional()
    with record_outputs(find_layers(model, ["encoder"])) as outer:
        with record_outputs(find_layers(model, ["a"]), lambda t: t + 1.0) as inner:
            model(X)
        assert inner["a"][0].numpy().tolist() == [[10.0], [22.0]]
    assert outer["encoder"][0].numpy().tolist() == SUMS
    assert is_restored(model.get_layer("encoder"), model.get_layer("a"))


def test_threads_keep_their_own_recordings():
    """As replicas of a strategy: the same layer at the same time, each with its own batch."""
    model = functional()
    layers = find_layers(model, "encoder")
    together = threading.Barrier(4, timeout=30)
    found, errors = {}, []

    def work(number):
        try:
            for turn in range(5):
                x = tf.constant([[float(number), float(turn)]])
                together.wait()
                with record_outputs(layers, lambda t: t * 1.0) as recorded:
                    model(x)
                    together.wait()  # all have called the layer before anyone leaves
                found[number, turn] = recorded["encoder"][0].numpy().tolist()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert found == {(n, t): [[float(n + t)] * 3] for n in range(4) for t in range(5)}
    assert is_restored(model.get_layer("encoder"))


def test_a_thread_without_a_recording_is_not_recorded():
    model = functional()
    with record_outputs(find_layers(model, "encoder"), lambda t: 0.0 * t) as recorded:
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(model(X)["a"].numpy().tolist()))
        thread.start()
        thread.join()
        assert recorded == {}
        model(X)
    assert elsewhere == [[[9.0], [21.0]]]
