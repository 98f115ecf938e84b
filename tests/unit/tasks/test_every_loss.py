"""Every Keras loss as a task of one model: its value, its second-order gradient, and what is said of flat ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from tests.unit.small_models import discriminator, restart, warnings_of

from . import every_loss
from .every_loss import LOSSES

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

ROWS, STEP = 7, 1e-5


@contextmanager
def in_float64() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


class Everything:
    """One model with all the losses at once, in float64, and what can be asked of it."""

    def __init__(self) -> None:
        restart(0)
        self.losses = every_loss.losses_of(LOSSES)
        self.base, (x, self.y) = every_loss.base(LOSSES), every_loss.data(LOSSES, ROWS)
        self.x = {"x": tf.constant(x["x"])}
        alignment = ga.AdversarialAlignment(1.0, schedule=1.0, discriminator=discriminator(tasks=len(LOSSES)))
        self.model = ga.MultiTaskModel(self.base, "encoder", alignment)
        self.model.compile("sgd", loss=self.losses, run_eagerly=True)
        rng = np.random.default_rng(1)
        self.cotangents = {task: tf.constant(rng.normal(size=(ROWS, 5))) for task in LOSSES}
        self.direction = tf.constant(rng.normal(size=(ROWS, 5)))

    def at(self, shift: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Each task's gradient along its cotangent, and the alignment loss, with the shared tensor shifted."""
        forward = self.model.forward((self.x, self.y), training=True, aligned=True, shift=[shift])
        of_tasks = self.model.task_gradients_of(forward)
        along = {task: tf.reduce_sum(of_tasks[task][0] * self.cotangents[task]) for task in LOSSES}
        return along, self.model.alignment(of_tasks, forward.masks)

    def second(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Their derivatives along one direction, by way of tapes; the alignment's is not reversed."""
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            shift = tf.zeros((ROWS, 5), "float64")
            tape.watch(shift)
            along, alignment = self.at(shift)
        derivatives = {t: tf.reduce_sum(tape.gradient(value, shift) * self.direction) for t, value in along.items()}
        return derivatives, -tf.reduce_sum(tape.gradient(alignment, shift) * self.direction)

    def differences(self) -> tuple[dict[str, float], float]:
        """The same by central differences."""
        (forth, up), (back, down) = self.at(STEP * self.direction), self.at(-STEP * self.direction)
        return {task: float(forth[task] - back[task]) / (2 * STEP) for task in LOSSES}, float(up - down) / (2 * STEP)


@pytest.fixture(scope="module")
def everything() -> Everything:
    with in_float64():
        return Everything()


@pytest.fixture(scope="module")
def differences(everything) -> tuple[dict[str, float], float]:
    with in_float64():
        return everything.differences()


@pytest.fixture(scope="module")
def second(everything) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    with in_float64():
        return everything.second()


@pytest.fixture(scope="module")
def logged(everything) -> dict[str, float]:
    with in_float64():
        return everything.model.evaluate(everything.x, everything.y, verbose=0, return_dict=True)


def test_the_table_has_every_loss_of_keras():
    assert every_loss.covered() | every_loss.REFUSED == every_loss.existing()


@pytest.mark.parametrize("task", LOSSES)
def test_value(task, everything, logged):
    label, prediction = everything.y[task], everything.base(everything.x)[task].numpy()
    rows = ~np.isnan(label.reshape(ROWS, -1)).any(axis=1)
    loss = everything.losses[task]
    loss = loss if isinstance(loss, keras.losses.Loss) else keras.losses.get(loss)
    assert logged[f"{task}_loss"] == pytest.approx(float(tf.reduce_mean(loss(label[rows], prediction[rows]))), rel=1e-9)


@pytest.mark.parametrize("task", LOSSES)
def test_second_order(task, second, differences):
    assert abs(differences[0][task]) > 1e-4
    assert float(second[0][task]) == pytest.approx(differences[0][task], rel=1e-6, abs=1e-8)


def test_second_order_of_the_alignment_of_them_all(second, differences):
    assert abs(differences[1]) > 1e-6
    assert float(second[1]) == pytest.approx(differences[1], rel=1e-5)


@pytest.mark.slow
def test_second_order_compiled(everything, differences):
    """All tasks in one sum, each with its share of it: a wrong one shows, and one backward pass is enough."""
    rng = np.random.default_rng(2)
    shares = {task: rng.uniform(1, 2) / abs(wanted) for task, wanted in differences[0].items()}

    def along(x, y):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            shift = tf.zeros((ROWS, 5), "float64")
            tape.watch(shift)
            forward = everything.model.forward((x, y), training=True, aligned=True, shift=[shift])
            of_tasks = everything.model.task_gradients_of(forward)
            parts = [tf.reduce_sum(of_tasks[t][0] * everything.cotangents[t]) * shares[t] for t in LOSSES]
            total = tf.add_n(parts)
        return tf.reduce_sum(tape.gradient(total, shift) * everything.direction)

    wanted = sum(shares[task] * differences[0][task] for task in LOSSES)
    y = {task: tf.constant(label) for task, label in everything.y.items()}
    with in_float64():
        traced = tf.function(along, autograph=False)
        compiled = tf.function(traced, autograph=False, jit_compile=True)  # the same graph, through XLA
        for found in (traced(everything.x, y), compiled(everything.x, y)):
            assert float(found) == pytest.approx(wanted, rel=1e-6)


# --- losses without curvature -----------------------------------------------------------------------------------------

# Behind linear towers: the gradient of none of these changes with the shared tensor.
STRAIGHT = {
    "hinge": ("hinge", "real", "binary"),
    "mae": ("mae", "real", "real"),
    "huber": (lambda: keras.losses.Huber(delta=1e-3), "real", "real"),
    "saturated": (lambda: keras.losses.BinaryCrossentropy(from_logits=True), "logit", "binary"),
}
# The loss does not change at all: a positive at a logit of 200, a value beyond the hinge's margin.
FLAT = {
    "certain": (lambda: keras.losses.BinaryCrossentropy(from_logits=True), "logit", "one"),
    "beyond": ("hinge", "real", "one"),
}
SOUND = {"buy": ("bce", "probability", "binary"), "price": ("mse", "real", "real"), "kind": LOSSES["sparse_logits"]}
EACH = {**STRAIGHT, **FLAT, **SOUND}


def straight_model(normalize, tasks=EACH):
    base = every_loss.base(tasks, hidden=None)
    for task, bias in (("saturated", 200.0), ("certain", 200.0), ("beyond", 200.0)):
        if task in tasks:
            base.get_layer(task).bias.assign([bias])
    own = discriminator(tasks=len(tasks))
    alignment = ga.AdversarialAlignment(0.5, schedule=1.0, normalize=normalize, discriminator=own)
    model = ga.MultiTaskModel(base, "encoder", alignment)
    model.compile(keras.optimizers.SGD(1e-3), loss=every_loss.losses_of(tasks), run_eagerly=True)
    return model


@pytest.mark.first_batch_check
@pytest.mark.parametrize(("normalize", "names"), [("batch", list(EACH)), ("l2", ["hinge", "beyond", "buy", "kind"])])
def test_losses_without_curvature_are_named_and_drop_nobody(normalize, names):
    tasks = {task: EACH[task] for task in names}
    x, y = every_loss.data(tasks, 12)
    if "saturated" in y:
        y["saturated"] *= 0.0  # far from its label, at a gradient of 1
    model = straight_model(normalize, tasks)
    before = {task: model.base.get_layer(f"tower_{task}").kernel.numpy() for task in tasks}
    encoder = model.base.get_layer("encoder").kernel.numpy()
    histories = []
    [said] = warnings_of(lambda: histories.append(model.fit(x, y, verbose=0).history))
    [straight] = [sentence for sentence in said.split(". ") if "has no curvature" in sentence]
    assert {task for task in tasks if f'"{task}"' in straight} == {*tasks} & {*STRAIGHT}
    [flat] = [sentence for sentence in said.split(". ") if "flat in this batch" in sentence]
    assert {task for task in tasks if f'"{task}"' in flat} == {*tasks} & {*FLAT}
    # With "l2" one number behind a linear tower has one direction; several classes have many.
    turning = [sentence for sentence in said.split(". ") if 'because with normalize="l2"' in sentence]
    assert [{task for task in tasks if f'"{task}"' in s} for s in turning] == ([{"buy"}] if normalize == "l2" else [])
    assert all(np.isfinite(values).all() for values in histories[0].values())
    assert all(np.isfinite(v.value).all() for v in model.variables)
    for task in tasks:
        moved = np.abs(model.base.get_layer(f"tower_{task}").kernel.numpy() - before[task]).max()
        assert (moved == 0) == (task in FLAT), task
    assert np.abs(model.base.get_layer("encoder").kernel.numpy() - encoder).max() > 0


def test_a_sound_task_keeps_its_path_next_to_flat_ones():
    """The alignment still reaches the shared tensor through it, as much as finite differences say."""
    tasks = {task: EACH[task] for task in ("hinge", "certain", "buy")}
    model = straight_model("batch", tasks)
    report = ga.check_second_order(model, every_loss.data(tasks, 12))
    assert report.agrees and report.tasks["buy"].second > 1e-4
    assert report.tasks["hinge"].second == report.tasks["certain"].second == 0.0
    assert (report.tasks["hinge"].rows, report.tasks["certain"].rows, report.tasks["certain"].labelled) == (10, 0, 10)


# --- what no task may use ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", ["circle", keras.losses.circle, keras.losses.Circle()], ids=["name", "function", "object"]
)
def test_losses_that_compare_rows_are_refused(loss):
    tasks = {"buy": SOUND["buy"], "place": LOSSES["cosine"]}
    model = ga.MultiTaskModel(every_loss.base(tasks))
    with pytest.raises(ga.UserError, match='loss of task "place" is Circle, which compares the rows'):
        model.compile("sgd", loss={"buy": "bce", "place": loss})


def test_a_loss_without_a_second_derivative_is_refused_where_it_is_aligned():
    tasks = {"buy": SOUND["buy"], "price": SOUND["price"], "text": LOSSES["cosine"]}
    base = every_loss.base(tasks)
    for loss in ("ctc", keras.losses.ctc, keras.losses.CTC()):
        losses = {"buy": "bce", "price": "mse", "text": loss}
        with pytest.raises(ga.UserError, match='loss of task "text" is CTC, whose second derivative is NaN'):
            ga.MultiTaskModel(base, "encoder", ga.AdversarialAlignment()).compile("sgd", loss=losses)
    alignment = ga.AdversarialAlignment(tasks=["buy", "price"])
    ga.MultiTaskModel(base, "encoder", alignment).compile("sgd", loss=losses)
    # What the sentence says, so that it goes once TensorFlow can.
    logits = tf.random.stateless_normal([2, 5, 4], [0, 1])
    with tf.GradientTape() as outer:
        outer.watch(logits)
        with tf.GradientTape() as inner:
            inner.watch(logits)
            value = keras.losses.CTC().call(tf.constant([[1, 2], [3, 3]]), logits)
        square = tf.reduce_sum(inner.gradient(value, logits) ** 2)
    assert np.isnan(outer.gradient(square, logits)).all()


@pytest.mark.parametrize("loss", [keras.losses.Dice, keras.losses.Tversky])
def test_losses_of_the_whole_batch_are_refused(loss):
    tasks = {"kind": LOSSES["dice_of_rows"]}
    x, y = every_loss.data(tasks, 4)
    model = ga.MultiTaskModel(every_loss.base(tasks))
    for axis, words in ((None, "returns one number for the whole batch"), ((0,), "returns 3 values for 4 rows")):
        model.compile("sgd", loss=loss(axis=axis), run_eagerly=True)
        with pytest.raises(ga.UserError, match=f'loss of task "kind" {words}'):
            model.evaluate(x, y, verbose=0)


def test_losses_of_different_float_types_add_up():
    tasks = {"buy": SOUND["buy"], "price": SOUND["price"]}
    x, y = every_loss.data(tasks, 8)
    logs = []
    for dtype in ("float32", "float64"):
        restart(0)
        alignment = ga.AdversarialAlignment(0.5, schedule=1.0, discriminator=discriminator())
        model = ga.MultiTaskModel(every_loss.base(tasks), "encoder", alignment)
        losses = {"buy": "bce", "price": keras.losses.MeanSquaredError(dtype=dtype)}
        model.compile("sgd", loss=losses, loss_weights={"price": 0.5}, run_eagerly=True)
        logs.append(model.train_on_batch(x, y, return_dict=True))
    for key, values in logs[0].items():
        assert values == pytest.approx(logs[1][key], rel=1e-5), key
