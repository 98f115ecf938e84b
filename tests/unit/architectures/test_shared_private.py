import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.architectures import shared_private
from gradalign.layers import Categorical, MultiValued, Numeric

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

FIELDS = {"tags": MultiValued(6), "city": Categorical(5), "age": Numeric(), "zip": Categorical(4)}
TASKS = ["click", "buy"]  # in no alphabetical order


def build(**kwargs):
    return shared_private(FIELDS, TASKS, shared_dim=3, private_dim=2, towers=(4, 3), **kwargs)


def batch(rows=5, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "tags": rng.integers(0, 6, (rows, 3)),
        "city": rng.integers(0, 5, rows),
        "age": rng.normal(size=rows).astype("float32"),
        "zip": rng.integers(0, 4, rows),
    }


def ragged(inputs):
    tags = [row[row != 0] for row in inputs["tags"]]
    lengths = [len(row) for row in tags]
    return {
        **{k: tf.constant(v) for k, v in inputs.items()},
        "tags": tf.RaggedTensor.from_row_lengths(np.concatenate(tags), lengths),
    }


def test_layer_names_shapes_and_order_of_outputs():
    model = build()
    assert model.get_layer("shared_embedding").output.shape == (None, 4 * 3)
    for task in TASKS:
        assert model.get_layer(f"private_embedding_{task}").output.shape == (None, 4 * 2)
        tower = model.get_layer(f"tower_{task}")
        assert [layer.kernel.shape for layer in (*tower.hidden, tower.last)] == [(20, 4), (4, 3), (3, 1)]
    assert list(model.output) == TASKS
    assert {name: i.shape for name, i in model.input.items()} == {
        "tags": (None, None),
        "city": (None,),
        "age": (None,),
        "zip": (None,),
    }


def test_each_task_is_its_tower_on_the_shared_and_its_private_embedding():
    model, inputs = build(), batch()
    predictions = model(inputs)
    for task in TASKS:
        x = np.concatenate(
            [model.get_layer("shared_embedding")(inputs), model.get_layer(f"private_embedding_{task}")(inputs)], axis=1
        )
        tower = model.get_layer(f"tower_{task}")
        for layer in (*tower.hidden, tower.last):
            kernel, bias = layer.get_weights()
            x = x @ kernel + bias
            x = 1 / (1 + np.exp(-x)) if layer is tower.last else keras.activations.gelu(x).numpy()
        np.testing.assert_allclose(predictions[task], x, rtol=1e-5)


def test_no_variable_is_shared_but_the_shared_embedding():
    model = build()
    inputs = {k: tf.constant(v) for k, v in batch().items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs)["click"])
    touched = {
        v.path
        for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True)
        if g is not None
    }
    assert touched == {v.path for v in model.trainable_variables if "buy" not in v.path}
    assert "shared_embedding/table" in touched


def test_without_private_embeddings():
    model = shared_private(FIELDS, TASKS, shared_dim=3, private_dim=0, towers=(4,))
    assert not any("private" in layer.name for layer in model.layers)
    assert model.get_layer("tower_buy").hidden[0].kernel.shape == (12, 4)


def test_one_task_no_hidden_layer():
    model = shared_private({"city": Categorical(5)}, ["buy"], towers=())
    assert model({"city": np.array([0, 4])})["buy"].shape == (2, 1)


def test_ragged_equals_padded():
    model, inputs = build(), batch()
    padded, from_ragged = model(inputs), model(ragged(inputs))
    for task in TASKS:
        np.testing.assert_allclose(from_ragged[task], padded[task], rtol=1e-6)


def test_a_saved_model_predicts_the_same(tmp_path):
    model, inputs = build(dropout=0.1), batch()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for fed in (inputs, ragged(inputs)):
        of_loaded, expected = loaded(fed), model(fed)
        for task in TASKS:
            np.testing.assert_array_equal(of_loaded[task], expected[task])
    assert list(loaded.output) == TASKS
    assert list(loaded.get_layer("shared_embedding").fields.items()) == list(FIELDS.items())


def test_it_trains_on_tables_of_every_kind():
    """Compiled; in a graph the command line trains it, and `tests/parity/test_fit.py`."""
    inputs = batch(512)
    labels = {"click": (inputs["city"] > 2).astype("float32"), "buy": (inputs["age"] > 0).astype("float32")}
    model = shared_private(FIELDS, TASKS, shared_dim=3, private_dim=2, towers=(4,))  # small: tracing is what takes time
    model.compile(keras.optimizers.SGD(2.0), loss=dict.fromkeys(TASKS, "binary_crossentropy"), jit_compile=True)
    before = {w.path: w.numpy() for w in model.weights}
    predicted = model(inputs)
    eager = sum(keras.losses.BinaryCrossentropy()(labels[task][:, None], predicted[task]) for task in TASKS)
    losses = []
    for _ in range(48):
        model.reset_metrics()
        losses.append(model.train_on_batch(inputs, labels, return_dict=True)["loss"])
    assert losses[0] == pytest.approx(float(eager), rel=1e-5)
    assert losses[-1] < 0.5 * losses[0]
    assert all(np.any(w.numpy() != before[w.path]) for w in model.weights)


def test_dropout_acts_in_training_only():
    model, inputs = build(dropout=0.5), batch()
    still = model(inputs)["buy"]
    np.testing.assert_array_equal(still, model(inputs, training=False)["buy"])
    assert np.any(np.asarray(still) != np.asarray(model(inputs, training=True)["buy"]))


def test_float64_throughout():
    keras.config.set_floatx("float64")
    model = build()
    assert {w.dtype for w in model.weights} == {"float64"}
    assert {p.dtype for p in model(batch()).values()} == {tf.float64}
    assert model.input["age"].dtype == "float64"


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_gives_float32_probabilities(policy):
    keras.config.set_dtype_policy(policy)
    model = build()
    assert {p.dtype for p in model(batch()).values()} == {tf.float32}
    assert model.get_layer("shared_embedding").output.dtype == keras.config.dtype_policy().compute_dtype
    assert {w.dtype for w in model.weights} == {"float32"}


def test_it_can_be_exported_alone(tmp_path):
    model, inputs = build(), batch()
    model.export(tmp_path / "serving", verbose=False)
    serve = tf.saved_model.load(tmp_path / "serving").signatures["serving_default"]
    typed = {k: tf.constant(v, model.input[k].dtype) for k, v in inputs.items()}
    for rows in (5, 1):
        out = serve(**{k: v[:rows] for k, v in typed.items()})
        for task in TASKS:
            np.testing.assert_allclose(out[task], model(inputs)[task][:rows], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": {}}, "at least one field name"),
        ({"tasks": []}, "at least one task"),
        ({"tasks": ["a", "a"]}, 'Task "a" is named twice'),
        ({"tasks": ["buy it"]}, "received 'buy it'"),
        ({"tasks": [3]}, "received 3"),
        ({"tasks": ["city"]}, '"city" is both a field and a task'),
        ({"tasks": ["shared_embedding"]}, "one of the model's layers; rename the task"),
        ({"fields": {"tower_click": Numeric()}}, "one of the model's layers; rename the field"),
        ({"fields": {"native country": Numeric()}}, '"native country" cannot be the name of an input'),
        ({"shared_dim": 0}, "`shared_dim` must be a whole number of at least 1, received 0"),
        ({"private_dim": -1}, "`private_dim` must be a whole number of at least 0, received -1"),
        ({"towers": (4, 0)}, r"received \(4, 0\)"),
        ({"dropout": 1.0}, "received 1.0"),
    ],
)
def test_bad_arguments_are_quoted(change, message):
    arguments = {"fields": FIELDS, "tasks": TASKS, **change}
    with pytest.raises(ValueError, match=message):
        shared_private(arguments.pop("fields"), arguments.pop("tasks"), **arguments)


def test_a_string_is_no_list_of_tasks():
    with pytest.raises(TypeError, match='received the string "buy"'):
        shared_private(FIELDS, "buy")


# --- chains -----------------------------------------------------------------------------------------------------------


def chained(chain, tasks=("click", "cart", "buy", "like")):
    return shared_private(FIELDS, tasks, shared_dim=3, private_dim=2, towers=(4,), chain=chain)


def test_a_chained_output_is_the_product_of_its_factors():
    """By hand, from the logits of the towers; "like" is part of no chain and stays as it was."""
    model, inputs = chained({"cart": "click", "buy": "cart"}), batch()
    for task in ("click", "cart", "buy", "like"):  # biases start at zero; let them differ
        last = model.get_layer(f"tower_{task}").last
        last.bias.assign([{"click": -2.0, "cart": -1.0, "buy": 0.5, "like": 1.0}[task]])
    factors = {}
    for task in ("click", "cart", "buy"):
        logit = keras.Model(model.input, model.get_layer(f"tower_{task}").output)(inputs)
        factors[task] = 1 / (1 + np.exp(-logit.numpy()))
    predictions = model(inputs)
    np.testing.assert_allclose(predictions["click"], factors["click"], rtol=1e-5)
    np.testing.assert_allclose(predictions["cart"], factors["click"] * factors["cart"], rtol=1e-5)
    product = factors["click"] * factors["cart"] * factors["buy"]
    np.testing.assert_allclose(predictions["buy"], product, rtol=1e-5)
    assert list(model.output) == ["click", "cart", "buy", "like"]
    like = keras.Model(model.input, model.get_layer("tower_like").output)(inputs)
    np.testing.assert_allclose(predictions["like"], 1 / (1 + np.exp(-like.numpy())), rtol=1e-5)
    assert len(model.trainable_variables) == len(chained(None).trainable_variables)


def test_a_rare_positive_of_a_chain_gets_its_gradient():
    """By hand: d -log(σ(a) σ(b)) / da = σ(a) - 1; the product itself, 1e-14, is under what Keras cuts off."""
    model, inputs = chained({"buy": "click"}, ("click", "buy")), batch()
    biases = [model.get_layer(f"tower_{task}").last.bias for task in ("click", "buy")]
    for task, bias in zip(("click", "buy"), biases, strict=True):
        model.get_layer(f"tower_{task}").last.kernel.assign(np.zeros((4, 1)))
        bias.assign([-16.0])
    with tf.GradientTape() as tape:
        loss = keras.losses.BinaryCrossentropy()(np.ones((5, 1)), model(inputs)["buy"])
    np.testing.assert_allclose(loss, 32.0, rtol=1e-5)
    for gradient in tape.gradient(loss, biases):
        np.testing.assert_allclose(gradient, [-1.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ({"buy": "clik"}, r'`chain` names "clik", which is no task'),
        ({"by": "click"}, r'`chain` names "by", which is no task'),
        ({"buy": "buy"}, "comes back to itself: buy -> buy"),
        ({"like": "buy", "buy": "cart", "cart": "buy"}, "comes back to itself: like -> buy -> cart -> buy"),
    ],
)
def test_chains_that_are_refused(chain, message):
    with pytest.raises(ValueError, match=message):
        chained(chain)


def test_a_task_with_the_name_of_a_chains_layer_is_refused():
    with pytest.raises(ValueError, match='"buy_chain" is the name of one of the model'):
        chained({"buy": "click"}, ("click", "buy", "buy_chain"))
