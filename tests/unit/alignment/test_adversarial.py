"""The adversarial alignment: its loss and gradients by hand, and the properties that all alignments share."""

from __future__ import annotations

import math
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from gradalign.alignment import AdversarialAlignment
from gradalign.alignment.adversarial import BalancedAccuracy
from gradalign.errors import UserError
from tests.unit.run_modes import MODES, in_mode

from . import asserts
from .asserts import value_and_gradients


@keras.saving.register_keras_serializable(package="gradalign_tests")
def half_way(progress):
    return 0.5 * progress


def linear_discriminator(kernel, bias):
    """Logits q W + b, in float64."""
    kernel, bias = np.array(kernel), np.array(bias)
    layer = keras.layers.Dense(kernel.shape[1], dtype="float64")
    layer.build((None, kernel.shape[0]))
    layer.set_weights([kernel, bias])
    return layer


@keras.saving.register_keras_serializable(package="gradalign_tests")
class Smooth(keras.layers.Layer):
    """A discriminator of a user, with equal weights every time it is made."""

    def __init__(self, tasks=3, **kwargs):
        super().__init__(**kwargs)
        self.tasks = tasks
        self.hidden, self.logits = self.dense(5, 1, "tanh"), self.dense(tasks, 2)

    def dense(self, units, seed, activation=None):
        start = keras.initializers.RandomNormal(stddev=0.5, seed=seed)
        return keras.layers.Dense(
            units, activation, kernel_initializer=start, bias_initializer=start, dtype=self.dtype_policy
        )

    def build(self, shape):
        self.hidden.build(shape)
        self.logits.build((None, 5))

    def call(self, rows):
        return self.logits(self.hidden(rows))

    def get_config(self):
        return {**super().get_config(), "tasks": self.tasks}


def make(dtype="float64", **arguments):
    arguments = {"weight": 0.7, "schedule": 1.0, "discriminator": Smooth(dtype=dtype), **arguments}
    return AdversarialAlignment(**arguments)


# --- by hand ------------------------------------------------------------------------------------------------------

GRADS = {"a": [[3.0, 4.0], [0.0, 2.0]], "b": [[-5.0, 0.0], [8.0, -6.0]]}
# Lengths a: 5, 2, root mean square sqrt(14.5); b: 5, 10, sqrt(62.5).
NORMALISED = {
    "none": GRADS,
    "l2": {"a": [[0.6, 0.8], [0.0, 1.0]], "b": [[-1.0, 0.0], [0.8, -0.6]]},
    "batch": {
        "a": (np.array(GRADS["a"]) / math.sqrt(14.5)).tolist(),
        "b": (np.array(GRADS["b"]) / math.sqrt(62.5)).tolist(),
    },
}


def constants(grads, dtype="float64"):
    return {task: tf.constant(g, dtype) for task, g in grads.items()}


def cross_entropy(own, other):
    return math.log(1.0 + math.exp(other - own))


@pytest.mark.parametrize(
    ("normalize", "mode"),
    [*((way, "eager") for way in NORMALISED), ("batch", "graph"), ("batch", "jit"), ("l2", "jit")],
)
def test_the_loss_by_hand(normalize, mode):
    """The identity as discriminator: logits are the entries of the row; CE = log(1 + exp(other - own))."""
    alignment = AdversarialAlignment(
        discriminator=linear_discriminator(np.eye(2), [0.0, 0.0]), normalize=normalize, schedule=1.0
    )
    loss = in_mode(alignment.__call__, mode)(constants(GRADS))
    a, b = NORMALISED[normalize]["a"], NORMALISED[normalize]["b"]
    of_a = [cross_entropy(row[0], row[1]) for row in a]
    of_b = [cross_entropy(row[1], row[0]) for row in b]
    assert float(loss) == pytest.approx((sum(of_a) / 2 + sum(of_b) / 2) / 2, rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_by_hand_with_uneven_labels(mode):
    """dCE/dz = p - e; the weights get it as it is, the gradients below the reversal turned and times the strength."""
    kernel, bias, strength = np.array([[1.0, -1.0], [0.5, 2.0]]), np.array([0.1, -0.2]), 0.3 * 2.0
    alignment = AdversarialAlignment(
        0.3, discriminator=linear_discriminator(kernel, bias), normalize="none", schedule=2.0
    )
    masks = {"b": [False, True]}
    run = in_mode(lambda g: value_and_gradients(alignment, g, masks), mode)
    loss, at_grads, (at_kernel, at_bias) = run(constants(GRADS))

    rows = np.array([*GRADS["a"], GRADS["b"][1]])  # two of a, each weighs 1/4; one of b, weighs 1/2
    own = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    share = np.array([[0.25], [0.25], [0.5]])
    logits = rows @ kernel + bias
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert float(loss) == pytest.approx(-(share * own * np.log(p)).sum(), rel=1e-12)
    at_logits = share * (p - own)
    np.testing.assert_allclose(at_kernel, rows.T @ at_logits, rtol=1e-10)
    np.testing.assert_allclose(at_bias, at_logits.sum(axis=0), rtol=1e-10)
    back = -strength * at_logits @ kernel.T
    np.testing.assert_allclose(at_grads["a"], back[:2], rtol=1e-10)
    np.testing.assert_allclose(at_grads["b"], [[0.0, 0.0], back[2]], rtol=1e-10)


def test_only_tasks_with_rows_are_averaged():
    alignment = AdversarialAlignment(
        discriminator=linear_discriminator(np.eye(2), [0.0, 0.0]), normalize="none", schedule=1.0
    )
    loss = alignment(constants(GRADS), {"b": [False, False]})
    assert float(loss) == pytest.approx((cross_entropy(3.0, 4.0) + cross_entropy(0.0, 2.0)) / 2, rel=1e-12)


def test_weight_zero_trains_the_discriminator_alone():
    loss, at_grads, at_weights = value_and_gradients(make(weight=0.0), asserts.sampled())
    assert float(loss) == pytest.approx(float(make()(asserts.sampled())), rel=1e-12)
    assert not any(np.asarray(g).any() for g in at_grads.values())
    assert all(np.abs(g).max() > 0 for g in at_weights)


def test_the_discriminator_descends_at_full_strength_whatever_the_weight():
    weak, strong = (value_and_gradients(make(weight=w), asserts.sampled()) for w in (0.1, 1.0))
    for one, other in zip(weak[2], strong[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(10 * weak[1]["a"], strong[1]["a"], rtol=1e-10)


def test_huge_logits_stay_finite():
    alignment = AdversarialAlignment(
        discriminator=linear_discriminator(1e4 * np.eye(2), [0.0, 0.0]), normalize="none", schedule=1.0
    )
    loss, at_grads, _ = value_and_gradients(alignment, constants({"a": [[0.0, 1.0]], "b": [[0.0, 1.0]]}))
    assert float(loss) == pytest.approx(5e3)
    assert all(np.isfinite(g).all() for g in at_grads.values())


# --- what every alignment does --------------------------------------------------------------------------------------

WAYS = {"batch": {"normalize": "batch"}, "l2": {"normalize": "l2"}, "none": {"normalize": "none"}}


@pytest.fixture(params=WAYS)
def make_in_each_way(request):
    return lambda **arguments: make(**{**WAYS[request.param], **arguments})


def test_acts(make_in_each_way):
    asserts.assert_acts(make_in_each_way)


@pytest.mark.parametrize("how", ["zero", "masked", "masked NaN"])
def test_left_out_rows_do_not_matter(make_in_each_way, how):
    asserts.assert_left_out_rows_do_not_matter(make_in_each_way, how)


def test_every_task_weighs_the_same(make_in_each_way):
    asserts.assert_every_task_weighs_the_same(make_in_each_way)


def test_a_task_without_rows_does_not_count(make_in_each_way):
    asserts.assert_a_task_without_rows_does_not_count(make_in_each_way)


def test_order_of_tasks_does_not_matter(make_in_each_way):
    def permute(alignment, order):
        logits = alignment.discriminator.logits
        kernel, bias = logits.get_weights()
        logits.set_weights([kernel[:, order], bias[order]])

    asserts.assert_order_of_tasks_does_not_matter(make_in_each_way, permute)


@pytest.mark.parametrize("normalize", ["batch", "l2"])
def test_same_in_every_mode(normalize):
    asserts.assert_same_in_every_mode(lambda: make(normalize=normalize))


def test_first_called_in_a_graph():
    asserts.assert_first_called_in_a_graph(make)


def test_float16_gradients_are_computed_in_float32(make_in_each_way):
    asserts.assert_float16_gradients_are_computed_in_float32(lambda: make_in_each_way(dtype="float32"))


def test_float16_gradients_with_the_default_discriminator():
    def make_default():
        random.seed(0)
        return AdversarialAlignment(schedule=1.0)

    asserts.assert_float16_gradients_are_computed_in_float32(make_default)


def test_float64_gradients_give_a_float64_loss():
    asserts.assert_float64_gradients_give_a_float64_loss(lambda: make(dtype="float32"))


SETTINGS = {"weight": 0.25, "normalize": "l2", "schedule": "linear", "total_steps": 40, "tasks": ["a", "c"]}


@pytest.mark.parametrize("arguments", [{}, {"schedule": half_way, "total_steps": 7}], ids=["plain", "own schedule"])
def test_round_trip_with_a_given_discriminator(arguments):
    asserts.assert_round_trip(make, **arguments)


def test_round_trip_with_the_default_discriminator():
    asserts.assert_round_trip(AdversarialAlignment, **SETTINGS)


BAD = [(name, value) for name, values in asserts.BAD_ARGUMENTS.items() for value in values]


@pytest.mark.parametrize(("name", "value"), [*BAD, ("discriminator", "mlp"), ("discriminator", 3)], ids=str)
def test_bad_arguments_are_quoted(name, value):
    asserts.assert_bad_arguments_are_quoted(AdversarialAlignment, name, value)


# --- the discriminator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_default_discriminator_takes_the_dtype_of_the_gradients(dtype):
    alignment = AdversarialAlignment(schedule=1.0)
    loss = alignment(asserts.sampled(dtype=dtype))
    assert loss.dtype == dtype
    assert {w.dtype for w in alignment.discriminator.weights} == {dtype}
    assert tuple(alignment.trainable_variables[0].shape) == (4, 64)
    assert tuple(alignment.trainable_variables[-1].shape) == (3,)


def test_a_mixed_policy_leaves_the_default_discriminator_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    alignment = AdversarialAlignment(schedule=1.0)
    assert alignment(asserts.sampled(dtype="float16")).dtype == tf.float32
    assert alignment.discriminator.compute_dtype == "float32"
    assert {w.dtype for w in alignment.discriminator.weights} == {"float32"}


@pytest.mark.parametrize("per", ["row", "position"])
def test_a_discriminator_of_the_wrong_width_is_an_error(per):
    alignment = AdversarialAlignment(discriminator=keras.layers.Dense(2), schedule=1.0, per=per)
    grads = asserts.sampled() if per == "row" else {t: tf.ones([2, 5, 4]) for t in asserts.TASKS}
    with pytest.raises(UserError, match=r"discriminator returns shape .*one for each of a, b, c"):
        alignment(grads)


def test_only_the_discriminator_is_trained():
    alignment = make()
    alignment(asserts.sampled())
    assert [v.path for v in alignment.trainable_variables] == [v.path for v in alignment.discriminator.weights]


def test_discriminator_accuracy_is_balanced_over_tasks():
    """Named right: 2 of 3 rows of a, the one row of b; (2/3 + 1) / 2."""
    alignment = AdversarialAlignment(
        discriminator=linear_discriminator(np.eye(2), [0.0, 0.0]), normalize="none", schedule=1.0
    )
    grads = constants({"a": [[2.0, 1.0], [3.0, 1.0], [1.0, 2.0]], "b": [[1.0, 2.0], [9.0, 1.0], [0.0, 0.0]]})
    alignment(grads, {"b": [True, False, True]}, update_metrics=True)
    assert float(alignment.accuracy.result()) == pytest.approx(5 / 6)
    alignment(grads, {"b": [True, False, True]})
    assert float(alignment.accuracy.result()) == pytest.approx(5 / 6)
    assert alignment.chance_accuracy == 0.5
    assert [m.name for m in alignment.metrics] == ["discriminator_accuracy"]


def test_balanced_accuracy_over_batches():
    """Task a: 1 of 4; task b: 3 of 3; task c: no rows."""
    metric = BalancedAccuracy(3)
    assert float(metric.result()) == 0.0
    right = tf.constant([[True, False], [True, True], [True, True]])
    metric.update_state(right, tf.constant([[True, True], [True, True], [False, False]]))
    metric.update_state(~right, tf.constant([[False, True], [False, False], [False, False]]))
    metric.update_state(tf.constant([[False], [True], [False]]), tf.constant([[True], [True], [False]]))
    assert float(metric.result()) == pytest.approx((2 / 4 + 1.0) / 2)
    metric.reset_state()
    assert float(metric.result()) == 0.0


# --- per position ---------------------------------------------------------------------------------------------------


def of_rank_3(batch=3, positions=5, channels=2, tasks=("a", "b"), seed=0):
    random = np.random.default_rng(seed)
    return {task: random.normal(size=(batch, positions, channels)) + n for n, task in enumerate(tasks)}


@pytest.mark.parametrize(("normalize", "mode"), [("batch", "eager"), ("l2", "eager"), ("none", "graph")])
def test_the_default_discriminator_judges_each_position_by_itself(normalize, mode):
    """As if every position were a row of the batch."""
    grads = of_rank_3()
    random.seed(0)
    by_position = AdversarialAlignment(schedule=1.0, normalize=normalize, per="position")
    loss = in_mode(lambda g: by_position(g, {"a": [True, False, True]}), mode)(constants(grads))
    by_row = AdversarialAlignment(schedule=1.0, normalize=normalize)
    flat = {task: g.reshape(15, 2) for task, g in grads.items()}
    by_row(constants(flat))
    by_row.discriminator.set_weights(by_position.discriminator.get_weights())
    wanted = by_row(constants(flat), {"a": np.repeat([True, False, True], 5)})
    assert float(loss) == pytest.approx(float(wanted), rel=1e-10)


def test_a_convolutional_discriminator_sees_the_positions_together():
    """Against PyTorch's convolution of width 3, cross-entropy over positions, each task weighing the same."""
    grads = of_rank_3()
    conv = keras.layers.Conv1D(2, 3, padding="same", dtype="float64")
    alignment = AdversarialAlignment(discriminator=conv, normalize="none", schedule=1.0, per="position")
    assert conv.built is False
    alignment.build_for(["a", "b"], [[None, 5, 2]], "float64")
    assert len(alignment.trainable_variables) == 2  # there before the first step, or they are saved without values
    masks = {"b": [False, True, True]}
    loss, at_grads, (at_kernel, _) = value_and_gradients(alignment, constants(grads), masks)

    x = {task: torch.tensor(g, requires_grad=True) for task, g in grads.items()}
    kernel = torch.tensor(conv.kernel.numpy(), requires_grad=True)  # (width, in, out)
    terms = []
    for number, (task, g) in enumerate(x.items()):
        kept = g if task == "a" else torch.cat([torch.zeros_like(g[:1]), g[1:]])
        logits = torch.nn.functional.conv1d(kept.transpose(1, 2), kernel.permute(2, 1, 0), padding=1)
        log_p = torch.log_softmax(logits, dim=1)[:, number]
        terms.append(-(log_p if task == "a" else log_p[1:]).mean())
    wanted = sum(terms) / 2
    wanted.backward()
    assert float(loss) == pytest.approx(wanted.item(), rel=1e-10)
    np.testing.assert_allclose(at_kernel, kernel.grad, rtol=1e-9, atol=1e-12)
    for task, g in x.items():
        np.testing.assert_allclose(at_grads[task], -0.1 * g.grad, rtol=1e-9, atol=1e-12)


def test_a_convolution_that_loses_positions_is_an_error():
    conv = keras.layers.Conv1D(2, 3, padding="valid")
    alignment = AdversarialAlignment(discriminator=conv, schedule=1.0, per="position")
    with pytest.raises(
        UserError, match=r"shape \(None, 3, 2\) for gradients \(None, 5, 2\).*\(None, 5, 2\), one for each"
    ):
        alignment(constants(of_rank_3(), "float32"))


def test_zero_positions_are_left_out():
    """A position with a zero gradient is no row; the others stay."""
    grads = of_rank_3(batch=1)
    holes = {task: np.concatenate([g, np.zeros((1, 2, 2))], axis=1) for task, g in grads.items()}
    discriminator = Smooth(2, dtype="float64")
    plain = AdversarialAlignment(discriminator=discriminator, schedule=1.0)
    wanted = plain({task: g[0] for task, g in constants(grads).items()})
    alignment = AdversarialAlignment(schedule=1.0, per="position", discriminator=PerPosition(discriminator))
    assert float(alignment(constants(holes))) == pytest.approx(float(wanted), rel=1e-12)


class PerPosition(keras.layers.Layer):
    """A discriminator of rows at every position."""

    def __init__(self, inner):
        super().__init__(dtype=inner.dtype_policy)
        self.inner = inner

    def call(self, x):
        return keras.ops.stack([self.inner(x[:, n]) for n in range(x.shape[1])], axis=1)
