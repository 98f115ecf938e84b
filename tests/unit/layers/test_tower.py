import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign import AdversarialAlignment, MultiTaskModel, UserError, check_second_order, task_gradients
from gradalign.gradients.task_gradients import TaskTape, recording_tapes
from gradalign.layers import Tower


@pytest.fixture
def rng():
    """Return numbers of each test's own, whichever ran before it."""
    return np.random.default_rng(1)


def built(*args, widths=(5,), **kwargs):
    """Return a tower with random weights, biases and slopes included."""
    tower = Tower(*args, name="tower", **kwargs)
    tower.build([(None, width) for width in widths])
    rng = np.random.default_rng(0)
    for weight in tower.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    return tower


def test_widths_and_output():
    tower = Tower((5, 3), dropout=0.5)
    probability = tower(np.random.default_rng(0).normal(size=(4, 7)))
    assert [layer.kernel.shape for layer in (*tower.hidden, tower.last)] == [(7, 5), (5, 3), (3, 1)]
    assert [layer.rate for layer in tower.dropouts] == [0.5, 0.5]
    assert probability.shape == tower.compute_output_shape((4, 7)) == (4, 1)
    assert np.all((probability > 0) & (probability < 1))


def test_no_hidden_layer_is_logistic_regression():
    tower = Tower(())
    tower.build((None, 2))
    tower.set_weights([np.array([[1.0], [-2.0]]), np.array([0.5])])
    np.testing.assert_allclose(tower(np.array([[3.0, 1.0]])), [[1 / (1 + np.exp(-1.5))]], rtol=1e-6)


def test_it_is_its_dense_layers_one_after_the_other(rng):
    tower, x = built((4, 3), "prelu", output_activation=None), rng.normal(size=(6, 5)).astype("float32")
    h = x
    for dense, slope in zip(tower.hidden, tower.slopes, strict=True):
        h = h @ dense.kernel.numpy() + dense.bias.numpy()
        h = np.where(h > 0, h, slope.alpha.numpy() * h)
    np.testing.assert_allclose(tower(x), h @ tower.last.kernel.numpy() + tower.last.bias.numpy(), rtol=1e-5, atol=1e-6)


def test_a_logit_is_the_probability_before_the_sigmoid():
    logit, probability = Tower((3,), output_activation=None), Tower((3,))
    x = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    logit(x), probability(x)
    probability.set_weights(logit.get_weights())
    np.testing.assert_allclose(probability(x), tf.sigmoid(logit(x)), rtol=1e-6)


def second_derivative_norm(activation):
    """Of the direction of dz/dx by x: what the alignment needs to reach the shared representation."""
    tower = built((8, 8), activation, output_activation=None, widths=(4,))
    x = tf.constant(np.random.default_rng(0).normal(size=(6, 4)), tf.float32)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            z = tf.reduce_sum(tower(x))
        g = inner.gradient(z, x)
        direction = g / tf.sqrt(tf.reduce_sum(g**2, axis=1, keepdims=True))
        probe = tf.reduce_sum(direction[:, 0])
    second = outer.gradient(probe, x)
    return 0.0 if second is None else float(tf.norm(second))


def test_the_default_tower_has_a_second_derivative_and_relu_has_none():
    assert second_derivative_norm("gelu") > 1e-3
    assert Tower((4,)).activation is keras.activations.gelu
    assert second_derivative_norm("relu") == 0.0


# --- the fast path ----------------------------------------------------------------------------------------------


def everything(tower, parts, mode="eager"):
    """Return loss, task gradient, and the gradients of a function of both by weights and inputs."""
    inputs = [tf.constant(part) for part in parts]

    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            shared, *private = [x * 1.0 for x in inputs]

            def losses_of(shared):
                return {"click": -tf.math.log(tower([shared, *private], training=True))[:, 0]}

            losses, gradients = task_gradients(losses_of, shared)
            total = tf.reduce_sum(losses["click"]) + tf.reduce_sum(tf.sin(3.0 * gradients["click"]))
        of_variables = tape.gradient(total, [*inputs, *tower.trainable_variables])
        return [losses["click"], gradients["click"], *of_variables]

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "compiled", autograph=False)
    return [np.asarray(tf.convert_to_tensor(value)) for value in run(*inputs)]


@pytest.mark.parametrize(
    ("activation", "units", "dropout", "mode"),
    [
        ("relu", (6, 4, 3), 0.4, "eager"),
        ("relu", (6, 4), 0.0, "compiled"),
        ("leaky_relu", (6, 4), 0.0, "graph"),
        (lambda: keras.layers.LeakyReLU(0.3), (6,), 0.4, "eager"),
        ("prelu", (6, 4), 0.4, "graph"),
        ("prelu", (6,), 0.0, "eager"),
        ("linear", (6, 4), 0.4, "eager"),
        ("relu", (), 0.0, "eager"),
    ],
)
def test_the_fast_path_equals_the_general_one(activation, units, dropout, mode, rng):
    keras.config.set_floatx("float64")
    tower = built(units, activation if isinstance(activation, str) else activation(), dropout, widths=(5, 3))
    parts = rng.normal(size=(7, 5)), rng.normal(size=(7, 3))
    assert tower.general_because is None
    masks = [layer.seed_generator.state.numpy() for layer in tower.dropouts]
    fast = everything(tower, parts, mode)
    for layer, state in zip(tower.dropouts, masks, strict=True):
        layer.seed_generator.state.assign(state)
    tower.fast = False
    assert tower.general_because == "it was made with fast=False"
    for quick, general in zip(fast, everything(tower, parts), strict=True):
        np.testing.assert_allclose(quick, general, rtol=1e-12, atol=1e-12 * np.abs(general).max())


def test_by_hand():
    # One unit that is on: z = 2(3x + 1), so dL/dx = 6 for L = z, and its derivative by the two kernels is 2 and 3.
    tower = Tower((1,), "relu", output_activation=None)
    tower.build((None, 1))
    tower.set_weights([np.array([[3.0]]), np.array([1.0]), np.array([[2.0]]), np.array([0.0])])
    with tf.GradientTape() as tape:
        losses, gradients = task_gradients(lambda s: {"click": tower(s)[:, 0]}, tf.constant([[1.0], [-1.0]]))
        total = tf.reduce_sum(gradients["click"])
    assert losses["click"].numpy().tolist() == [8.0, 0.0]
    assert gradients["click"].numpy().tolist() == [[6.0], [0.0]]
    kernels = [tower.hidden[0].kernel.value, tower.last.kernel.value]
    assert [g.numpy().item() for g in tape.gradient(total, kernels)] == [2.0, 3.0]


def test_two_parts_that_are_both_shared(rng):
    keras.config.set_floatx("float64")
    tower, parts = built((6, 4), "relu", widths=(5, 3)), [rng.normal(size=(7, 5)), rng.normal(size=(7, 3))]
    found = []
    for fast in (True, False):
        tower.fast = fast
        with tf.GradientTape() as tape:
            _, gradients = task_gradients(
                lambda s: {"click": -tf.math.log(tower([s["a"], 2.0 * s["b"]]))[:, 0]},
                {"a": tf.constant(parts[0]), "b": tf.constant(parts[1])},
            )
            total = sum(tf.reduce_sum(g**3) for g in gradients["click"].values())
        found.append([np.asarray(tf.convert_to_tensor(g)) for g in tape.gradient(total, tower.trainable_variables)])
    for quick, general in zip(*found, strict=True):
        np.testing.assert_allclose(quick, general, rtol=1e-12, atol=1e-12 * np.abs(general).max())


def test_weights_that_are_frozen_hide_no_gradient(rng):
    tower, x = built((4,), "relu"), rng.normal(size=(6, 5)).astype("float32")
    free = everything(tower, [x])
    tower.trainable = False
    frozen = everything(tower, [x])
    for before, after in zip(free[:3], frozen, strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_a_third_derivative_is_refused(rng):
    tower, x = built((4,), "relu"), tf.constant(rng.normal(size=(6, 5)), tf.float32)
    kernel = tower.last.kernel.value

    def third():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                _, gradients = task_gradients(lambda s: {"click": tower(s)[:, 0] ** 2}, x)
                total = tf.reduce_sum(gradients["click"] ** 2)
            second = tf.reduce_sum(tape.gradient(total, kernel) ** 2)
        return outer.gradient(second, kernel)

    with pytest.raises(UserError, match=r"fast path has no third derivative: .* fast=False"):
        third()
    tower.fast = False
    assert third() is not None


@pytest.mark.parametrize(
    ("why", "make"),
    [
        ('its activation "gelu" is not piecewise linear', lambda: Tower((4,))),
        ("it was made with fast=False", lambda: Tower((4,), "relu", fast=False)),
        ("it computes in float32", lambda: Tower((4,), keras.layers.LeakyReLU(0.3, dtype="float64"))),
        ("it computes in bfloat16", lambda: Tower((4,), "relu", dtype="mixed_bfloat16")),
    ],
)
def test_where_it_takes_the_general_path_it_says_why(why, make, rng):
    tower, x = make(), tf.constant(rng.normal(size=(6, 5)), tf.float32)
    assert tower.general_because == why
    _, gradients = task_gradients(lambda s: {"click": tf.cast(tower(s), tf.float32)[:, 0]}, x)
    assert float(tf.norm(gradients["click"])) > 0


def test_the_check_says_which_path_runs(rng):
    x = keras.Input((5,))
    shared = keras.layers.Dense(4, name="encoder")(x)
    towers = {"click": Tower((3,), "relu", name="click"), "buy": Tower((3,), name="buy")}
    model = MultiTaskModel(keras.Model(x, {t: tower(shared) for t, tower in towers.items()}), "encoder",
                           AdversarialAlignment(0.1))  # fmt: skip
    model.compile("sgd", loss="binary_crossentropy")
    rows = rng.normal(size=(16, 5)).astype("float32")
    labels = (rows[:, :1] > 0).astype("float32")
    report = check_second_order(model, (rows, {"click": labels, "buy": labels}))
    assert 'Tower "click" takes the fast path.' in str(report)
    assert 'Tower "buy" takes the general path: its activation "gelu" is not piecewise linear.' in str(report)


def test_a_tape_knows_what_depends_on_its_shared_tensors():
    with TaskTape() as tape:
        shared = tape.watch(tf.constant([[1.0]]))
        assert recording_tapes() == [tape]
        assert tape.reaches(shared) and tape.reaches(tf.tanh(shared)) and not tape.reaches(tf.constant([[1.0]]))
    assert recording_tapes() == []
    with pytest.raises(ZeroDivisionError), TaskTape():
        _ = 1 / 0
    assert recording_tapes() == []


# --- precision, saving, arguments ---------------------------------------------------------------------------------


def test_mixed_precision_ends_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    tower = Tower((3,))
    assert [layer.compute_dtype for layer in (*tower.hidden, tower.last)] == ["float16", "float32"]
    assert tower(np.zeros((2, 2), "float16")).dtype == "float32"


def test_float64_throughout():
    keras.config.set_floatx("float64")
    assert Tower((3,))(np.zeros((2, 2))).dtype == "float64"


@pytest.mark.parametrize("activation", ["prelu", "gelu", keras.layers.LeakyReLU(0.3)])
def test_saved_and_loaded(tmp_path, activation, rng):
    x = [keras.Input((5,)), keras.Input((3,))]
    model = keras.Model(x, Tower((4,), activation, 0.1, fast=False, output_activation=None, name="tower")(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    parts = [rng.normal(size=(6, 5)), rng.normal(size=(6, 3))]
    np.testing.assert_array_equal(loaded(parts), model(parts))
    tower = loaded.get_layer("tower")
    assert (tower.units, tower.dropout, tower.fast) == ([4], 0.1, False)


@pytest.mark.parametrize("units", [(64, 0), (1.5,), "64", 64, (True,), None])
def test_bad_widths_are_quoted(units):
    with pytest.raises(ValueError, match=r"widths of a tower .* received"):
        Tower(units)


def test_a_layer_of_slopes_is_refused_and_other_activations_go_by_their_names():
    with pytest.raises(ValueError, match='give activation="prelu"'):
        Tower((4, 3), keras.layers.PReLU())
    assert Tower((np.int64(4),), keras.layers.ReLU(6.0)).general_because == (
        'its activation "ReLU" is not piecewise linear'
    )


@pytest.mark.parametrize("fast", ["no", 0, None])
def test_a_bad_fast_is_quoted(fast):
    with pytest.raises(UserError, match=f"fast of a tower is True or False; received {fast!r}"):
        Tower((4,), fast=fast)


@pytest.mark.parametrize("dropout", [1, -0.1, "0.1", True, None])
def test_a_bad_dropout_is_quoted(dropout):
    with pytest.raises(ValueError, match=r"`dropout` must be a number in \[0, 1\), received"):
        Tower((4,), dropout=dropout)
