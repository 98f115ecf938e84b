"""What holds for every alignment, whatever its method.

Each assert takes `make`, which returns a new alignment: equal weights on every call, a number as schedule, and its
keyword arguments go to the constructor. It is called with the gradients of `TASKS`, of width `WIDTH`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.alignment import Alignment
from tests.unit.run_modes import MODES, in_mode

TASKS = ("a", "b", "c")
WIDTH = 4


def sampled(rows=6, *, tasks=TASKS, width=WIDTH, seed=0, dtype="float64", scale=1.0):
    """`{task: gradient rows}`, about different means, so that the tasks can be told apart."""
    random = np.random.default_rng(seed)
    return {
        task: tf.constant(scale * (random.normal(size=(rows, width)) + number), dtype)
        for number, task in enumerate(tasks)
    }


def value_and_gradients(alignment, grads, masks=None, **kwargs):
    """The loss, `{task: d loss / d gradient}`, and the gradients of the alignment's own weights."""
    with tf.GradientTape() as tape:
        tape.watch(list(grads.values()))
        loss = alignment(grads, masks, **kwargs)
    own = alignment.trainable_variables
    zero = tf.UnconnectedGradients.ZERO
    found = tape.gradient(loss, [*grads.values(), *own], unconnected_gradients=zero)
    return loss, dict(zip(grads, found, strict=False)), found[len(grads) :]


def assert_equal(got, wanted, rtol=1e-10, atol=1e-13):
    """Two results of `value_and_gradients` are the same."""
    np.testing.assert_allclose(got[0], wanted[0], rtol=rtol, atol=atol)
    for task, gradient in wanted[1].items():
        np.testing.assert_allclose(got[1][task], gradient, rtol=rtol, atol=atol, err_msg=task)
    for mine, other in zip(got[2], wanted[2], strict=True):
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=atol)


def assert_acts(make: Callable[..., Alignment]) -> None:
    """The loss is a finite scalar, and every task's gradient and every weight gets a part of its gradient."""
    loss, at_grads, at_weights = value_and_gradients(make(), sampled())
    assert loss.shape == () and np.isfinite(loss)
    for part in (*at_grads.values(), *at_weights):
        assert np.isfinite(part).all() and np.abs(part).max() > 0


def assert_left_out_rows_do_not_matter(make: Callable[..., Alignment], how: str) -> None:
    """Rows of zeros, or masked rows with anything in them, change neither loss nor any gradient, and get none."""
    grads = sampled(6)
    filling = {"zero": 0.0, "masked": 1e3, "masked NaN": float("nan")}[how]
    more = {
        task: tf.concat([g[:4], tf.fill([3, WIDTH], tf.constant(filling, g.dtype)), g[4:]], 0)
        for task, g in grads.items()
    }
    masks = None if how == "zero" else {task: [True] * 4 + [False] * 3 + [True] * 2 for task in grads}
    plain = value_and_gradients(make(), grads)
    loss, at_grads, at_weights = value_and_gradients(make(), more, masks)
    for g in at_grads.values():
        assert not g[4:7].numpy().any()
    kept = {task: tf.concat([g[:4], g[7:]], 0) for task, g in at_grads.items()}
    assert_equal((loss, kept, at_weights), plain)


def assert_every_task_weighs_the_same(make: Callable[..., Alignment]) -> None:
    """A task whose rows are there three times over counts no more; its gradient is spread over the three."""
    grads = sampled(4)
    thrice = {task: tf.concat([g, g, g], 0) for task, g in grads.items()}
    masks = {task: [True] * 12 if task == "b" else [True] * 4 + [False] * 8 for task in grads}
    plain = value_and_gradients(make(), grads)
    loss, at_grads, at_weights = value_and_gradients(make(), thrice, masks)
    summed = {task: tf.reduce_sum(tf.reshape(g, [3, 4, WIDTH]), 0) for task, g in at_grads.items()}
    assert_equal((loss, summed, at_weights), plain)


def assert_a_task_without_rows_does_not_count(make: Callable[..., Alignment]) -> None:
    """It gets no gradient, and nothing is NaN; with no rows at all the loss is 0."""
    grads = sampled(4)
    loss, at_grads, at_weights = value_and_gradients(make(), grads, {"b": [False] * 4})
    assert np.isfinite(loss) and all(np.isfinite(part).all() for part in (*at_grads.values(), *at_weights))
    assert not at_grads["b"].numpy().any()
    assert any(np.asarray(part).any() for part in ((at_grads["a"],) if make().second_order else at_weights))
    loss, at_grads, at_weights = value_and_gradients(make(), grads, {task: [False] * 4 for task in grads})
    assert float(loss) == 0.0
    assert not any(np.asarray(part).any() for part in (*at_grads.values(), *at_weights))


def assert_order_of_tasks_does_not_matter(
    make: Callable[..., Alignment], permute: Callable[[Alignment, list[int]], None] = lambda alignment, order: None
) -> None:
    """With the tasks in another order, loss and gradients are the same; `permute` reorders weights that know tasks."""
    grads, order = sampled(), [2, 0, 1]
    loss, at_grads, _ = value_and_gradients(make(), grads)
    other = make()
    turned = {TASKS[n]: grads[TASKS[n]] for n in order}
    other(turned)
    permute(other, order)
    other_loss, at_turned, _ = value_and_gradients(other, turned)
    assert_equal((other_loss, at_turned, []), (loss, at_grads, []))


def assert_same_in_every_mode(make: Callable[..., Alignment], modes: tuple[str, ...] = MODES) -> None:
    """Eager, as a graph and compiled by XLA, with masks and a row of zeros."""
    grads = sampled(dtype="float32")
    grads["a"] = tf.concat([grads["a"][:5], tf.zeros([1, WIDTH])], 0)
    masks = {"b": tf.constant([True, True, False, True, True, True])}
    alignment = make()
    alignment(grads, masks)
    found = {mode: in_mode(lambda g: value_and_gradients(alignment, g, masks), mode)(grads) for mode in modes}
    assert float(found["eager"][0]) != 0.0
    for mode in modes[1:]:
        assert_equal(found[mode], found["eager"], rtol=1e-4, atol=1e-6)


def assert_first_called_in_a_graph(make: Callable[..., Alignment]) -> None:
    """An own loop may call the alignment for the first time inside its compiled step."""
    grads, alignment = sampled(), make()
    found = in_mode(alignment.__call__, "graph")(grads)
    np.testing.assert_allclose(found, make()(grads), rtol=1e-12)


def assert_float16_gradients_are_computed_in_float32(make: Callable[..., Alignment]) -> None:
    """Also under a mixed policy: the loss is float32, and near that of the same numbers in float32."""
    small = sampled(dtype="float16")
    exact = {task: tf.cast(g, tf.float32) for task, g in small.items()}
    wanted = make()(exact)
    keras.config.set_dtype_policy("mixed_float16")
    alignment = make()
    loss, at_grads, at_weights = value_and_gradients(alignment, small)
    assert loss.dtype == tf.float32
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    assert all(g.dtype == tf.float16 and np.isfinite(g).all() for g in at_grads.values())
    assert all(g.dtype == tf.float32 for g in at_weights)


def assert_float64_gradients_give_a_float64_loss(make: Callable[..., Alignment]) -> None:
    assert make()(sampled(dtype="float64")).dtype == tf.float64
    assert make()(sampled(dtype="float32")).dtype == tf.float32


def assert_round_trip(make: Callable[..., Alignment], **arguments) -> None:
    """Through a JSON text and a file of weights and back: the same configuration, all weights, the same loss."""
    alignment = make(**arguments)
    grads = sampled()
    alignment(grads)
    text = json.dumps(keras.saving.serialize_keras_object(alignment))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is type(alignment)
    assert json.dumps(again.get_config()) == json.dumps(alignment.get_config())
    for name, value in arguments.items():
        assert getattr(again, "given_total_steps" if name == "total_steps" else name) == value, name
    assert again.built  # from the build configuration, so that weights can be loaded
    for variable in alignment.weights:  # none has the value that it starts with
        variable.assign(variable + keras.ops.ones_like(variable))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/alignment.weights.h5"
        _Holder(alignment).save_weights(path)
        _Holder(again).load_weights(path)
    for loaded, saved in zip(again.weights, alignment.weights, strict=True):
        np.testing.assert_array_equal(loaded, saved)
    np.testing.assert_allclose(again(grads), alignment(grads), rtol=1e-12)


class _Holder(keras.Model):
    """A model of an alignment alone, which Keras saves and loads."""

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        self.alignment = alignment
        self.built = True


BAD_ARGUMENTS = {
    "weight": [-0.1, float("nan"), float("inf"), "0.1", None, True],
    "normalize": ["l3", None, 2],
    "schedule": ["gannin", -1.0, float("nan"), None, True, [0.1]],
    "total_steps": [0, -3, 2.5, "ten", True, float("nan")],
    "tasks": ["click", ["a", "a"], [], [1], 3],
    "row_task": [3, ["a"]],
    "reach": ["towers", None],
    "per": ["channel", None],
}


def assert_bad_arguments_are_quoted(make: Callable[..., Alignment], name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"received|unknown|is not one") as caught:
        make(**{name: value})
    assert type(caught.value).__name__ == "UserError"
    assert repr(value) in str(caught.value)
    assert name.split("_")[0] in str(caught.value)
