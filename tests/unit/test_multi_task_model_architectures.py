"""Models that users bring: experts above the shared tensor, dense prediction, many tasks, numbers at the edge."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .first_update import ADVERSARY_RATE, RATE, WEIGHT, assert_first_update, compiled
from .small_models import TASKS, WIDTH, aligned, data, functional

pytestmark = pytest.mark.usefixtures("no_first_batch_check")


def test_experts_above_the_shared_tensor():
    """Multi-gate mixture of experts on shared embeddings: two experts, a softmax gate and a head for each task."""
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    experts = [keras.layers.Dense(4, "gelu", name=f"expert_{i}") for i in range(2)]
    gates = {task: keras.layers.Dense(2, "softmax", name=f"gate_{task}") for task in TASKS}
    heads = {task: keras.layers.Dense(1, "sigmoid", name=task) for task in TASKS}
    mix = keras.layers.Dot(axes=1)
    stacked = keras.layers.Lambda(lambda parts: tf.stack(parts, axis=1), name="stack")([e(s) for e in experts])
    base = keras.Model({"x": x}, {task: heads[task](mix([gates[task](s), stacked])) for task in TASKS})

    def mixed(s):
        outputs = tf.stack([expert(s) for expert in experts], axis=1)
        return {task: heads[task](tf.reduce_sum(gates[task](s)[:, :, None] * outputs, axis=1)) for task in TASKS}

    model = compiled(aligned(base, weight=WEIGHT))
    assert_first_update(model, lambda x: base.get_layer("encoder")(x["x"]), mixed, *data(16, missing=0.2))


def test_thirty_two_tasks():
    tasks = tuple(f"task_{number:02}" for number in range(32))
    rng = np.random.default_rng(0)
    x = {"x": rng.normal(size=(16, WIDTH)).astype("float32")}
    y = {task: rng.integers(0, 2, (16, 1)).astype("float32") for task in tasks}
    base = functional(tasks, towers=False)
    model = compiled(aligned(base, weight=WEIGHT))
    assert_first_update(
        model,
        lambda x: base.get_layer("encoder")(x["x"]),
        lambda s: {task: base.get_layer(task)(s) for task in tasks},
        x,
        y,
    )
    assert model.alignment.discriminator.output_shape == (None, 32)


@pytest.fixture
def dense_prediction():
    """ASTMT's form: feature maps (B, 4, 4, C) shared by two tasks that predict something for each position."""
    image = keras.Input((4, 4, 2), name="image")
    features = keras.layers.Conv2D(3, 3, padding="same", activation="tanh", name="features")(image)
    outputs = {}
    for task in ("edges", "depth"):
        h = keras.layers.Conv2D(4, 1, activation="gelu", name=f"tower_{task}")(features)
        outputs[task] = keras.layers.Conv2D(1, 1, name=task)(h)
    rng = np.random.default_rng(0)
    x = {"image": rng.normal(size=(3, 4, 4, 2)).astype("float32")}
    y = {task: rng.normal(size=(3, 4, 4, 1)).astype("float32") for task in outputs}
    y["depth"][1] = np.nan
    return keras.Model({"image": image}, outputs), x, y


def convolutional():
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((4, 4, 3)), layers.Conv2D(5, 3, padding="same", activation="tanh"), layers.Conv2D(2, 1)]
    )


def test_dense_prediction_with_a_convolutional_discriminator(dense_prediction):
    """The update by hand: a row gradient at each position, its length over channels, one label a position."""
    base, x, y = dense_prediction
    tasks = list(y)
    model = aligned(
        base, shared="features", weight=WEIGHT, per="position", normalize="l2", discriminator=convolutional()
    )
    compiled(model, loss="mse")
    layer = base.get_layer
    labelled = {"edges": np.ones(3, bool), "depth": np.array([True, False, True])}
    discriminator = model.alignment.discriminator
    with tf.GradientTape(persistent=True) as tape:
        s = layer("features")(x["image"])
        tape.watch(s)
        rows, total = [], 0.0
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(s)
            sums = {}
            for task in tasks:
                squares = tf.square(layer(task)(layer(f"tower_{task}")(s)) - np.nan_to_num(y[task]))
                of_row = tf.reduce_mean(squares, axis=[1, 2, 3])
                sums[task] = tf.reduce_sum(tf.where(labelled[task], of_row, 0.0))
        for task in tasks:
            total += sums[task] / np.sum(labelled[task])
            g = inner.gradient(sums[task], s)
            safe = tf.where(labelled[task][:, None, None, None], g, 1.0)
            rows.append(
                tf.where(labelled[task][:, None, None, None], safe / tf.norm(safe, axis=-1, keepdims=True), 0.0)
            )
        alignment = 0.0
        for number, task in enumerate(tasks):
            log_p = tf.nn.log_softmax(discriminator(rows[number]))[..., number]
            alignment -= (
                tf.reduce_sum(tf.where(labelled[task][:, None, None], log_p, 0.0)) / (16 * np.sum(labelled[task])) / 2
            )
    expected = []
    for v in base.trainable_variables:
        g, reversed_g = tape.gradient(total, v.value), tape.gradient(alignment, v.value)
        expected.append(v.numpy() - RATE * (g - WEIGHT * (0.0 if reversed_g is None else reversed_g)))
    own = [v.numpy() - ADVERSARY_RATE * tape.gradient(alignment, v.value) for v in discriminator.trainable_variables]
    history = model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0).history
    assert history["alignment_loss"][0] == pytest.approx(float(alignment), rel=1e-5)
    trained = [*base.trainable_variables, *discriminator.trainable_variables]
    for variable, value in zip(trained, [*expected, *own], strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-4, atol=1e-6, err_msg=variable.path)


def test_the_check_of_dense_prediction(dense_prediction):
    base, x, y = dense_prediction
    model = aligned(base, shared="features", per="position", discriminator=convolutional())
    report = ga.check_second_order(compiled(model, loss="mse"), (x, y))
    assert report.ok, str(report)
    assert report.tasks["edges"].rows == 3 * 16 and report.tasks["depth"].rows == 2 * 16


def test_outputs_that_are_not_keyed_by_words_are_refused_by_name():
    x = keras.Input((WIDTH,), name="x")

    class Numbered(keras.Model):
        def __init__(self):
            super().__init__(name="numbered")
            self.encoder = keras.layers.Dense(3, name="encoder")
            self.heads = [keras.layers.Dense(1) for _ in range(2)]

        def call(self, inputs):
            shared = self.encoder(inputs)
            return {number: head(shared) for number, head in enumerate(self.heads)}

    model = ga.MultiTaskModel(Numbered(), "encoder", ga.AdversarialAlignment(schedule=1.0))
    model.compile("sgd", loss="mse")
    with pytest.raises(ga.UserError, match=r'Model "numbered" returns a dict with the keys \[0, 1\]'):
        model.fit(np.ones((4, WIDTH), "float32"), {"a": np.ones(4), "b": np.ones(4)}, verbose=0)
    pair = keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)
    with pytest.raises(ga.UserError, match="returns a tuple"):
        ga.MultiTaskModel(keras.Model(x, pair))


# --- numbers at the edge ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", ["batch", "l2", "none"])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_tiny_and_huge_gradients(normalize, scale):
    """A head of tiny or huge weights: the row gradients scale with it; what the alignment does must stay finite."""
    base = functional()
    head = base.get_layer("buy")
    head.kernel.assign(head.kernel * scale)
    model = compiled(aligned(base, weight=WEIGHT, normalize=normalize))
    x, y = data(8)
    with tf.GradientTape() as tape:
        forward = model.forward((x, y), training=True, aligned=True)
        loss = model.alignment(model.task_gradients_of(forward), forward.masks)
    gradients = tape.gradient(loss, [*base.trainable_variables, *model.alignment.trainable_variables])
    found = [tf.convert_to_tensor(g) for g in gradients if g is not None]
    assert np.isfinite(float(loss)) and all(np.isfinite(g).all() for g in found)
    assert float(tf.reduce_max(tf.abs(found[0]))) > 0  # the encoder's kernel
    if normalize != "none" and scale < 1:
        rows = model.alignment.rows_of(model.task_gradients_of(forward), forward.masks)
        assert bool(tf.reduce_all(rows.kept))
        np.testing.assert_allclose(
            tf.sqrt(tf.reduce_mean(tf.reduce_sum(rows.gradients**2, axis=-1), axis=-1)), 1.0, rtol=1e-5
        )


@pytest.mark.first_batch_check
@pytest.mark.parametrize("normalize", ["batch", "l2"])
def test_saturated_logits_and_dead_units(normalize):
    """Probabilities of exactly 0 or 1 and units that never fire have no gradient: such rows are left out, not NaN."""
    base = functional(activation="relu")
    base.get_layer("tower_click").bias.assign(np.full(4, -100.0))  # dead: nothing of "click" reaches the encoder
    base.get_layer("buy").bias.assign([200.0])  # saturated: its labels of 1 have a loss of 0
    model = compiled(aligned(base, weight=WEIGHT, normalize=normalize))
    x, y = data(8)
    y["buy"][:] = 1.0
    before = base.get_layer("encoder").kernel.numpy()
    with pytest.warns(ga.GradAlignWarning, match="nothing to align"):
        history = model.fit(x, y, batch_size=8, verbose=0).history
    assert history["alignment_loss"] == [0.0]
    assert all(np.isfinite(v.value).all() for v in model.variables)
    np.testing.assert_array_equal(base.get_layer("encoder").kernel, before)
