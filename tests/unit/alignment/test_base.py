"""What all alignments take from their base class: strength, rows, masks, the rows' own tasks, reach, and building."""

from __future__ import annotations

import math
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.alignment import AdversarialAlignment, Alignment, Objective
from gradalign.errors import UserError
from gradalign.gradients import task_gradients
from tests.unit.run_modes import MODES, in_mode


class Lengths(Alignment):
    """The mean of the kept rows' entries: an alignment without weights whose value shows which rows it saw."""

    def align(self, rows, update_metrics):
        kept = tf.cast(rows.kept, rows.gradients.dtype)
        return tf.reduce_sum(tf.reduce_sum(rows.gradients, -1) * kept) / tf.maximum(tf.reduce_sum(kept), 1.0)


def plain(**arguments):
    return Lengths(**{"schedule": 1.0, "normalize": "none", **arguments})


# Every number is different, so a mean tells which rows went in.
GRADS = {"a": [[1.0], [2.0], [4.0]], "b": [[8.0], [16.0], [32.0]], "c": [[64.0], [128.0], [256.0]]}


def constants(tasks="abc", grads=GRADS):
    return {task: tf.constant(grads[task]) for task in tasks}


# --- strength -------------------------------------------------------------------------------------------------------


def test_strength_follows_the_schedule_step_by_step():
    alignment = AdversarialAlignment(0.3, total_steps=4)
    found = []
    for _ in range(7):
        found.append(float(alignment.strength))
        alignment.advance()
    progress = [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert found == pytest.approx([0.3 * (2 / (1 + math.exp(-10 * p)) - 1) for p in progress], abs=1e-12)
    assert int(alignment.step) == 7 and int(alignment.total_steps) == 4


@pytest.mark.parametrize(
    ("schedule", "wanted"), [("linear", [0.0, 0.5, 1.0]), (0.5, [0.5] * 3), (lambda p: 1.0 - p, [1.0, 0.5, 0.0])]
)
def test_strength_is_weight_times_schedule(schedule, wanted):
    alignment = AdversarialAlignment(2.0, schedule=schedule, total_steps=2)
    found = []
    for _ in range(3):
        found.append(float(alignment.strength))
        alignment.advance()
    assert found == pytest.approx([2.0 * w for w in wanted])


def test_a_traced_step_follows_the_schedule():
    alignment = AdversarialAlignment(1.0, schedule="linear", total_steps=4)
    traces = []

    @tf.function(autograph=False)
    def step():
        traces.append(1)
        strength = alignment.strength
        alignment.advance()
        return strength

    assert [float(step()) for _ in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert len(traces) == 1


def test_unknown_total_steps_are_an_error_when_they_are_needed():
    alignment = plain(schedule="ganin")
    with pytest.raises(UserError, match=r"'ganin' needs the total number of steps.*total_steps="):
        alignment(constants())
    with pytest.raises(UserError, match="needs the total number of steps"):
        alignment.set_total_steps(None)
    assert float(plain(schedule=0.5)(constants())) > 0


def test_total_steps_are_set_once_until_the_schedule_is_reset():
    alignment = plain(schedule="linear")
    alignment.set_total_steps(10)
    alignment.set_total_steps(99)
    assert int(alignment.total_steps) == 10
    alignment.advance()
    alignment.reset_schedule()
    assert int(alignment.step) == 0 and alignment.needs_total_steps
    alignment.set_total_steps(20)
    assert int(alignment.total_steps) == 20
    alignment.reset_schedule(5)
    assert int(alignment.total_steps) == 5


def test_a_reset_goes_back_to_the_constructor_s_total():
    alignment = plain(schedule="linear", total_steps=8)
    alignment.set_total_steps(99)
    alignment.reset_schedule(5)
    alignment.reset_schedule()
    assert int(alignment.total_steps) == 8


def test_a_number_as_schedule_needs_no_total_and_keeps_none():
    alignment = plain(schedule=1.0)
    alignment.set_total_steps(None)
    assert not alignment.needs_total_steps and int(alignment.total_steps) == 0


def test_fixed_strength_holds_within_its_context_only():
    alignment = plain(schedule="ganin")
    with alignment.fixed_strength(1.0):
        assert float(alignment.strength) == 1.0
        assert not alignment.needs_total_steps
        alignment(constants())
    assert alignment.needs_total_steps
    with pytest.raises(ZeroDivisionError), alignment.fixed_strength(1.0):
        raise ZeroDivisionError
    assert alignment.needs_total_steps


# --- which rows -----------------------------------------------------------------------------------------------------


def test_all_rows_of_all_tasks_by_default():
    assert float(plain()(constants())) == pytest.approx(511 / 9)


@pytest.mark.parametrize("mode", MODES)
def test_masks_and_zero_rows_leave_rows_out(mode):
    grads = constants()
    grads["c"] = tf.constant([[0.0], [128.0], [256.0]])
    masks = {"a": tf.constant([True, False, True]), "b": tf.constant([0, 0, 1])}
    alignment = plain()
    found = in_mode(lambda g: alignment(g, masks), mode)(grads)
    assert float(found) == pytest.approx((1 + 4 + 32 + 128 + 256) / 5)


def test_kept_rows_are_told_by_task():
    grads = constants()
    grads["c"] = tf.constant([[0.0], [128.0], [256.0]])
    alignment = plain(tasks=["b", "c"])
    alignment(grads)
    kept = alignment.kept_rows(alignment.rows_of(grads, {"b": [True, False, False]}))
    assert {task: k.numpy().tolist() for task, k in kept.items()} == {
        "b": [True, False, False],
        "c": [False, True, True],
    }


def test_masks_name_an_unknown_task():
    with pytest.raises(UserError, match='masks names an unknown task "bb"'):
        plain()(constants(), {"bb": [True] * 3})
    with pytest.raises(UserError, match=r'unknown task "click1".* Did you mean "click"'):
        plain()({"click": tf.ones([1, 1]), "buy": tf.ones([1, 1])}, {"click1": [True]})


def test_a_subset_of_tasks():
    alignment = plain(tasks=["a", "c"])
    assert float(alignment(constants())) == pytest.approx((7 + 448) / 6)
    assert alignment.aligned_tasks == ["a", "c"]
    # A mask of a task that is not aligned is no mistake.
    assert float(alignment(constants(), {"b": [False] * 3, "a": [True, False, False]})) == pytest.approx(449 / 4)


def test_a_subset_names_an_unknown_task():
    with pytest.raises(UserError, match='names a task "d", but the tasks are a, b, c'):
        plain(tasks=["a", "d"])(constants())


ROW_TASKS = {
    "int32": tf.constant([2, 0, 1]),
    "int64": tf.constant([2, 0, 1], tf.int64),
    "uint8": tf.constant([2, 0, 1], tf.uint8),
    "string": tf.constant(["c", "a", "b"]),
    "column": tf.constant([[2], [0], [1]]),
    "array": np.array([2, 0, 1]),
}


@pytest.mark.parametrize("kind", ROW_TASKS)
def test_each_row_gives_its_own_task_s_gradient(kind):
    """Rows 0, 1, 2 belong to c, a, b: 64, 2, 32."""
    alignment = plain(row_task="which")
    assert float(alignment(constants(), row_task=ROW_TASKS[kind])) == pytest.approx((64 + 2 + 32) / 3)


@pytest.mark.parametrize("mode", MODES)
def test_row_task_in_every_mode_and_with_masks(mode):
    """XLA has no strings, so numbers; row 1 has no label of its own task."""
    alignment, masks = plain(row_task="which"), {"a": tf.constant([True, False, True])}
    run = in_mode(lambda g, which: alignment(g, masks, which), mode)
    assert float(run(constants(), ROW_TASKS["int32"])) == pytest.approx((64 + 32) / 2)


@pytest.mark.parametrize("mode", MODES)
def test_boolean_row_task_is_true_for_the_first_of_two(mode):
    alignment = plain(row_task="is_a")
    run = in_mode(lambda g, which: alignment(g, row_task=which), mode)
    assert float(run(constants("ab"), tf.constant([True, False, True]))) == pytest.approx((1 + 16 + 4) / 3)


def test_row_task_counts_in_the_order_of_all_tasks_whatever_the_subset():
    alignment = plain(row_task="which", tasks=["a", "c"])
    assert float(alignment(constants(), row_task=tf.constant([2, 1, 0]))) == pytest.approx((64 + 4) / 2)


OUT_OF_RANGE = [tf.constant([0, 3, 1]), tf.constant([0, -1, 1]), tf.constant(["a", "d", "b"])]


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("row_task", OUT_OF_RANGE, ids=["above", "below", "name"])
def test_row_task_out_of_range_is_an_error(row_task, mode):
    alignment = plain(row_task="which")
    run = in_mode(lambda g, which: alignment(g, row_task=which), mode)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"which.* names a task outside"):
        run(constants(), row_task)


@pytest.mark.parametrize("row_task", OUT_OF_RANGE[:2], ids=["above", "below"])
def test_row_task_out_of_range_is_nan_under_xla(row_task):
    alignment = plain(row_task="which")
    run = in_mode(lambda g, which: alignment(g, row_task=which), "jit")
    assert math.isnan(run(constants(), row_task))
    assert float(run(constants(), tf.constant([0, 2, 1]))) == pytest.approx((1 + 128 + 32) / 3)


@pytest.mark.parametrize(
    ("row_task", "message"),
    [
        (
            tf.constant([True, False, True]),
            'boolean row_task "which" chooses between two tasks, but there are 3: a, b, c',
        ),
        (tf.constant([0.0, 1.0, 2.0]), 'row_task "which" holds booleans, task numbers or task names; received float32'),
        (None, 'made with row_task="which" and needs row_task='),
    ],
    ids=["boolean of three", "float", "missing"],
)
def test_row_task_that_cannot_be_followed(row_task, message):
    with pytest.raises(UserError, match=message):
        plain(row_task="which")(constants(), row_task=row_task)


def test_row_task_that_was_not_asked_for():
    with pytest.raises(UserError, match="made without row_task"):
        plain()(constants(), row_task=tf.constant([0, 1, 2]))


# --- gradients of several shapes ------------------------------------------------------------------------------------


def test_several_shared_tensors_are_joined_per_row():
    """Rows (3, 4) of two tensors have length 5; normalised (0.6, 0.8)."""
    parts = {"a": [tf.constant([[3.0]]), tf.constant([[4.0]])], "b": [tf.constant([[0.0]]), tf.constant([[2.0]])]}
    assert float(plain(normalize="l2")(parts)) == pytest.approx((1.4 + 1.0) / 2)


def test_higher_ranks_are_flattened_per_row_or_kept_per_position():
    """One row of length 13, or positions of length 5 and 12."""
    g = {"a": tf.constant([[[3.0, 4.0], [0.0, 12.0]]]), "b": tf.constant([[[0.0, 0.0], [0.0, 0.0]]])}
    assert float(plain(normalize="l2")(g)) == pytest.approx(19 / 13)
    assert float(plain(normalize="l2", per="position")(g)) == pytest.approx((1.4 + 1.0) / 2)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((4,), {}, r"one row for each example, \(B, D\); received shape \[4\]"),
        ((4, 2), {"per": "position"}, r"rank 3 or more, channels last; received shape \[4, 2\]"),
    ],
    ids=["rank 1", "positions of rank 2"],
)
def test_shapes_without_rows(shape, arguments, message):
    with pytest.raises(UserError, match=message):
        plain(**arguments)({"a": tf.ones(shape), "b": tf.ones(shape)})


def test_a_width_that_changes_is_an_error():
    alignment = plain()
    with pytest.raises(UserError, match=r"shape \[None, None, 2\], whose width changes"):
        alignment.build_for(["a", "b"], [[None, None, 2]], "float32")


def test_another_model_s_gradients_are_refused():
    alignment = plain()
    alignment(constants("ab"))
    with pytest.raises(UserError, match="built for the tasks a, b and now receives a, c"):
        alignment(constants("ac"))
    with pytest.raises(UserError, match=r"\(B, \.\.\.\) \[\[1\]\] and now receives \[\[3\]\]"):
        alignment({"a": tf.ones([2, 3]), "b": tf.ones([2, 3])})


@pytest.mark.parametrize("grads", [None, {}, [tf.ones([1, 1])]], ids=["none", "empty", "list"])
def test_what_is_not_a_dict_of_gradients(grads):
    with pytest.raises(UserError, match=r"takes \{task: gradient\}; received"):
        plain()(grads)


def test_the_base_class_has_no_method_of_its_own():
    with pytest.raises(UserError, match="Alignment does not implement align"):
        Alignment(schedule=1.0)(constants())
    for call in (lambda: Objective().discriminator_loss(None, None, None), lambda: Objective().model_loss(None, None)):
        with pytest.raises(UserError, match=r"Objective does not implement (discriminator|model)_loss\("):
            call()


# --- reach ----------------------------------------------------------------------------------------------------------


def aligned_step(reach):
    """d A / d (table, tower weights) of two tanh towers above rows of a table."""
    rng = np.random.default_rng(0)
    table, w_a, w_b = (tf.Variable(rng.normal(size=shape)) for shape in ((5, 3), (3, 2), (3, 2)))
    random.seed(0)
    alignment = AdversarialAlignment(
        1.0, schedule=1.0, reach=reach, discriminator=keras.layers.Dense(2, dtype="float64")
    )

    def run():
        with tf.GradientTape() as tape:
            s = tf.gather(table, [0, 1, 2, 3, 4, 0])
            _, grads = task_gradients(
                lambda s: {"a": tf.reduce_sum(tf.tanh(s @ w_a), 1), "b": tf.reduce_sum(tf.tanh(s @ w_b) ** 2, 1)}, s
            )
            loss = alignment(grads)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(loss, [table, w_a, w_b], unconnected_gradients=zero)
        return loss, [tf.convert_to_tensor(g) for g in found]

    return run


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_reach_shared_keeps_the_gradient_out_of_the_towers(mode):
    """In the towers nothing, in the table the same: a tower's weights are no function of the table."""
    loss, (at_table, *at_towers) = in_mode(aligned_step("shared"), mode)()
    wanted_loss, (wanted_at_table, *wanted_at_towers) = aligned_step("all")()
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-10)
    np.testing.assert_allclose(at_table, wanted_at_table, rtol=1e-8, atol=1e-12)
    assert np.abs(wanted_at_table).max() > 1e-3
    for limited, full in zip(at_towers, wanted_at_towers, strict=True):
        assert not limited.numpy().any() and np.abs(full).max() > 1e-3


def test_reach_shared_needs_gradients_that_know_the_shared_tensor():
    with pytest.raises(UserError, match="received a plain dict"):
        plain(reach="shared")(constants())


# --- state ----------------------------------------------------------------------------------------------------------


def test_counters_take_no_gradient_and_stay_whole_numbers():
    alignment = plain(schedule="linear", total_steps=3)
    assert [v.dtype for v in (alignment.step, alignment.total_steps)] == ["int64", "int64"]
    assert alignment.trainable_variables == []


class Holder(keras.Model):
    """A model that has an alignment, for the weights file alone."""

    def __init__(self, alignment):
        super().__init__()
        self.alignment = alignment
        self.built = True


def test_weights_and_position_are_saved_and_restored(tmp_path):
    grads = constants("ab")
    alignment = AdversarialAlignment(1.0, total_steps=9)
    wanted = alignment(grads)
    for _ in range(4):
        alignment.advance()
    Holder(alignment).save_weights(tmp_path / "a.weights.h5")

    again = AdversarialAlignment(1.0, schedule="ganin")
    again.build_from_config(alignment.get_build_config())
    assert len(again.trainable_variables) == len(alignment.trainable_variables) > 0
    Holder(again).load_weights(tmp_path / "a.weights.h5")
    assert int(again.step) == 4 and int(again.total_steps) == 9
    np.testing.assert_allclose(again(grads), wanted, rtol=1e-6)
    assert float(again.strength) == pytest.approx(2 / (1 + math.exp(-40 / 9)) - 1)
