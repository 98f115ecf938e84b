"""Task gradients by hand and, for the limited second-order path, against PyTorch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from gradalign.errors import UserError
from gradalign.gradients import TaskTape, task_gradients
from tests.unit.run_modes import MODES, in_mode

SHAPES = [(3,), (2, 3), (2, 3, 4), (2, 2, 3, 2)]


def sampled(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_rank_to_second_order(shape, mode):
    """a = sum s^2, b = sum w s^3: gradients 2s and 3ws^2; of sum v g_b again 6wvs."""
    s, w, v = sampled(*shape), sampled(*shape, seed=1), sampled(*shape, seed=2)

    def run(shared):
        with tf.GradientTape() as tape:
            tape.watch(shared)
            losses, grads = task_gradients(lambda x: {"a": tf.reduce_sum(x**2), "b": tf.reduce_sum(w * x**3)}, shared)
            pulled = tf.reduce_sum(v * grads["b"])
        return losses, dict(grads), tape.gradient(pulled, shared)

    losses, grads, second = in_mode(run, mode)(tf.constant(s))
    assert list(losses) == list(grads) == ["a", "b"]
    np.testing.assert_allclose(losses["b"], (w * s**3).sum(), rtol=1e-12)
    np.testing.assert_allclose(grads["a"], 2 * s, rtol=1e-12)
    np.testing.assert_allclose(grads["b"], 3 * w * s**2, rtol=1e-12)
    np.testing.assert_allclose(second, 6 * w * v * s, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_list_of_shared_tensors(mode):
    one, two = tf.constant([[1.0, 2.0]]), tf.constant([3.0])

    def run():
        return task_gradients(
            lambda s: {"a": tf.reduce_sum(s[0] * s[1]), "b": tf.reduce_sum(s[0] + s[1] ** 2)}, [one, two]
        )

    losses, grads = in_mode(run, mode)()
    assert float(losses["a"]) == 9.0
    assert [g.numpy().tolist() for g in grads["a"]] == [[[3.0, 3.0]], [3.0]]
    assert [g.numpy().tolist() for g in grads["b"]] == [[[1.0, 1.0]], [12.0]]


def test_dict_and_nested_shared_tensors():
    shared = {"user": tf.constant([2.0]), "item": [tf.constant([3.0]), tf.constant([5.0])]}
    _, grads = task_gradients(lambda s: {"a": s["user"] * s["item"][0] * s["item"][1]}, shared)
    assert grads["a"]["user"].numpy().tolist() == [15.0]
    assert [g.numpy().tolist() for g in grads["a"]["item"]] == [[10.0], [6.0]]
    limited = grads.limited()
    assert limited["a"]["user"].numpy().tolist() == [15.0]
    assert [g.numpy().tolist() for g in limited["a"]["item"]] == [[10.0], [6.0]]


def test_row_losses_count_as_their_sum_and_come_back_as_given():
    s = tf.constant([[1.0], [2.0], [3.0]])
    losses, grads = task_gradients(lambda x: {"rows": x[:, 0] ** 2, "mean": tf.reduce_mean(x[:, 0] ** 2)}, s)
    assert losses["rows"].numpy().tolist() == [1.0, 4.0, 9.0]
    assert grads["rows"].numpy().tolist() == [[2.0], [4.0], [6.0]]
    np.testing.assert_allclose(grads["mean"], [[2 / 3], [4 / 3], [2.0]], rtol=1e-6)


def test_losses_of_matrix_shape_count_as_their_sum():
    _, grads = task_gradients(lambda x: {"a": x**2}, tf.constant([[1.0, 2.0]]))
    assert grads["a"].numpy().tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize("mode", MODES)
def test_create_graph_false_stops_the_gradient(mode):
    def run(create_graph):
        s = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(s)
            _, grads = task_gradients(lambda x: {"a": x**3}, s, create_graph=create_graph)
            pulled = tf.reduce_sum(grads["a"])
        second = tape.gradient(pulled, s, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return grads["a"], second

    value, second = in_mode(lambda: run(False), mode)()
    assert value.numpy().tolist() == [3.0, 12.0]
    assert second.numpy().tolist() == [0.0, 0.0]
    assert in_mode(lambda: run(True), mode)()[1].numpy().tolist() == [6.0, 12.0]


def test_limited_needs_the_graph():
    _, grads = task_gradients(lambda x: {"a": x**3}, tf.constant([1.0]), create_graph=False)
    with pytest.raises(UserError, match="create_graph=False"):
        grads.limited()


def test_limited_needs_the_function_that_took_the_gradients():
    _, grads = in_mode(lambda: task_gradients(lambda x: {"a": x**3}, tf.constant([1.0])), "graph")()
    assert grads["a"].numpy().tolist() == [3.0]
    with pytest.raises(UserError, match=r"came out of a tf\.function"):
        grads.limited()


@pytest.mark.parametrize("mode", MODES)
def test_an_unused_shared_tensor_is_an_error_that_names_the_task(mode):
    s = tf.constant([1.0])
    run = in_mode(lambda: task_gradients(lambda x: {"click": x**2, "buy": tf.constant([1.0])}, s)[0], mode)
    with pytest.raises(UserError, match='task "buy" does not depend on the shared tensor'):
        run()


def test_an_unused_tensor_of_several_is_told_by_its_number():
    pair = [tf.constant([1.0]), tf.constant([2.0])]
    with pytest.raises(UserError, match='task "buy" does not depend on shared tensor 2 of 2'):
        task_gradients(lambda s: {"click": s[0] * s[1], "buy": s[0] ** 2}, pair)


@pytest.mark.parametrize("mode", MODES)
def test_allow_unused_gives_zeros(mode):
    def run():
        s = tf.constant([[1.0, 2.0]])
        with tf.GradientTape() as tape:
            tape.watch(s)
            _, grads = task_gradients(lambda x: {"a": x**2, "b": tf.constant(1.0)}, s, allow_unused=True)
            pulled = tf.reduce_sum(grads["a"] ** 2 + grads["b"])
        return dict(grads), tape.gradient(pulled, s)

    grads, second = in_mode(run, mode)()
    assert grads["a"].numpy().tolist() == [[2.0, 4.0]]
    assert grads["b"].numpy().tolist() == [[0.0, 0.0]]
    assert second.numpy().tolist() == [[8.0, 16.0]]


@pytest.mark.parametrize("mode", MODES)
def test_third_order(mode):
    """x^5: 5x^4, 20x^3, 60x^2, 120x."""

    def run():
        x = tf.constant([1.0, -2.0], tf.float64)
        with tf.GradientTape() as third:
            third.watch(x)
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape() as first:
                    first.watch(x)
                    _, grads = task_gradients(lambda s: {"a": s**5}, x)
                    one = grads["a"]
                two = first.gradient(one, x)
            three = second.gradient(two, x)
        return one, two, three, third.gradient(three, x)

    x = np.array([1.0, -2.0])
    for got, wanted in zip(in_mode(run, mode)(), (5 * x**4, 20 * x**3, 60 * x**2, 120 * x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_under_autograph():
    """A plain `@tf.function`, which rewrites the Python that it traces."""

    @tf.function
    def run(s):
        with tf.GradientTape() as tape:
            tape.watch(s)
            _, grads = task_gradients(lambda x: {"a": x**3}, s)
            pulled = tf.reduce_sum(grads["a"])
        return grads["a"], tape.gradient(pulled, s)

    first, second = run(tf.constant([2.0]))
    assert first.numpy().tolist() == [12.0] and second.numpy().tolist() == [12.0]


def test_many_tasks_from_one_call():
    """32 tasks: the gradient of t · s^2 is 2ts."""
    calls = []

    def losses(s):
        calls.append(s)
        return {f"task_{t}": tf.reduce_sum(t * s**2) for t in range(1, 33)}

    s = tf.constant([1.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(s)
        _, grads = task_gradients(losses, s)
        pulled = tf.add_n([tf.reduce_sum(g) for g in grads.values()])
    assert len(calls) == 1 and len(grads) == 32
    for t in range(1, 33):
        assert grads[f"task_{t}"].numpy().tolist() == [2.0 * t, 6.0 * t]
    # sum of t from 1 to 32 is 528
    assert tape.gradient(pulled, s).numpy().tolist() == [1056.0, 1056.0]


def test_a_lookup_in_the_shared_tensor_gives_a_dense_gradient():
    s = tf.constant([[1.0], [2.0], [3.0]])
    _, grads = task_gradients(lambda x: {"a": tf.gather(x, [0, 0, 2]) ** 2}, s)
    assert isinstance(grads["a"], tf.Tensor)
    assert grads["a"].numpy().tolist() == [[4.0], [0.0], [6.0]]


def test_arrays_and_variables_are_shared_tensors_too():
    for shared in (np.array([1.0, 2.0]), tf.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])):
        _, grads = task_gradients(lambda s: {"a": s**2}, shared)
        assert grads["a"].numpy().tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (keras.KerasTensor((None, 3), name="encoded"), 'symbolic KerasTensor "encoded"'),
        (tf.constant([1, 2]), "received int32: pass the looked-up embeddings"),
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "received a RaggedTensor"),
        (tf.sparse.from_dense([[1.0]]), "received a SparseTensor"),
        ([], r"at least one shared tensor; received \[\]"),
        ({"a": tf.constant([1.0]), "b": tf.constant([1])}, "received int32"),
    ],
    ids=["symbolic", "int", "ragged", "sparse", "empty", "int in a dict"],
)
def test_shared_tensors_without_a_gradient_are_refused(shared, message):
    with pytest.raises(UserError, match=message):
        task_gradients(lambda s: {"a": s}, shared)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (tf.reduce_sum, "received EagerTensor"),
        (lambda s: [s], "received list"),
        (lambda s: {}, r"\{task: loss\}"),
        (lambda s: {1: s}, "named by strings; received 1"),
        (lambda s: {"click": tf.cast(s, tf.int32)}, 'loss of task "click" is not a float tensor but int32'),
    ],
    ids=["tensor", "list", "empty", "number as name", "int loss"],
)
def test_losses_that_are_not_losses_are_refused(losses, message):
    with pytest.raises(UserError, match=message):
        task_gradients(losses, tf.constant([1.0]))


def both_sides(mode, limited):
    """P = sum c_t g_t^2 of two tanh towers above s = x U, and a tower that uses U again; gradients on both sides.

    PyTorch's limited path: the partial derivative dP/ds at constant weights, carried on through s alone.
    """
    arrays = [sampled(5, 3, seed=1), sampled(3, 4, seed=2), sampled(4, 2, seed=3), sampled(4, 1, seed=4)]
    x, u, w_a, w_b = (tf.Variable(a) for a in arrays)

    def towers(s):
        return {
            "a": tf.reduce_sum(tf.tanh(s @ w_a), axis=1) + tf.reduce_sum((s @ tf.transpose(u)) ** 3, axis=1),
            "b": tf.reduce_sum(tf.tanh(s @ w_b) ** 2, axis=1),
        }

    def run():
        with tf.GradientTape() as tape:
            s = x @ u
            _, grads = task_gradients(towers, s)
            used = grads.limited() if limited else grads
            penalty = tf.reduce_sum(used["a"] ** 2) + 2.0 * tf.reduce_sum(used["a"] * used["b"])
        zero = tf.UnconnectedGradients.ZERO
        return dict(used), tape.gradient(penalty, [u, w_a, w_b], unconnected_gradients=zero)

    values, got = in_mode(run, mode)()
    tx, tu, ta, tb = (torch.tensor(a, requires_grad=True) for a in arrays)
    s = tx @ tu
    a = torch.tanh(s @ ta).sum() + ((s @ tu.T) ** 3).sum()
    b = (torch.tanh(s @ tb) ** 2).sum()
    (g_a,) = torch.autograd.grad(a, s, create_graph=True)
    (g_b,) = torch.autograd.grad(b, s, create_graph=True)
    penalty = (g_a**2).sum() + 2.0 * (g_a * g_b).sum()
    if limited:
        # s is no function of the weights here; what reaches U goes through s.
        (at_s,) = torch.autograd.grad(penalty, s)
        wanted = [torch.autograd.grad(tx @ tu, tu, at_s)[0], torch.zeros_like(ta), torch.zeros_like(tb)]
    else:
        wanted = torch.autograd.grad(penalty, [tu, ta, tb])
    np.testing.assert_allclose(values["a"], g_a.detach(), rtol=1e-12)
    np.testing.assert_allclose(values["b"], g_b.detach(), rtol=1e-12)
    return got, [g.numpy() for g in wanted]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limited", [False, True], ids=["all", "limited"])
def test_the_second_order_path_in_full_and_limited_to_the_shared_tensor(limited, mode):
    got, wanted = both_sides(mode, limited)
    for mine, of_torch in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, of_torch, rtol=1e-10, atol=1e-13)
    assert (np.abs(wanted[1]).max() == 0) == limited


def test_two_shared_tensors_limited():
    """g_1 = w s_2, g_2 = w s_1 of L = w s_1 s_2; sum g^2 gives 2w^2 s to each s, and nothing to w."""
    w = tf.Variable(3.0)
    one, two = tf.constant([2.0]), tf.constant([5.0])
    with tf.GradientTape() as tape:
        tape.watch([one, two])
        _, grads = task_gradients(lambda s: {"a": w * s[0] * s[1]}, [one, two])
        pulled = tf.add_n([tf.reduce_sum(g**2) for g in grads.limited()["a"]])
    d_one, d_two, d_w = tape.gradient(pulled, [one, two, w])
    assert d_one.numpy().tolist() == [36.0] and d_two.numpy().tolist() == [90.0]
    assert d_w is None


def test_tape_keeps_the_path_to_what_made_the_shared_tensor():
    u = tf.Variable(2.0)
    with tf.GradientTape() as outer:
        with TaskTape() as tape:
            s = tape.watch(u * tf.constant([1.0, 3.0]))
            losses = {"a": s**3}
        pulled = tf.reduce_sum(tape.gradients(losses, [s])["a"][0])
    # g = 3 (u c)^2, d sum g / du = 6 u sum c^2
    assert float(outer.gradient(pulled, u)) == 120.0


def test_one_is_enough_of_several_shared_tensors():
    with TaskTape() as tape:
        pair = [tape.watch(tf.constant([1.0])), tape.watch(tf.constant([2.0]))]
        losses = {"a": pair[0] ** 2, "b": tf.constant(1.0)}
    assert [g.numpy().tolist() for g in tape.gradients({"a": losses["a"]}, pair, one_is_enough=True)["a"]] == [
        [2.0],
        [0.0],
    ]
    with pytest.raises(UserError, match='task "b" does not depend on shared tensor 1 of 2'):
        tape.gradients(losses, pair, one_is_enough=True)


def test_arguments_that_are_swapped_or_missing():
    with pytest.raises(UserError, match="the function of the shared tensors first"):
        task_gradients(tf.ones([4, 3]), lambda s: {"a": s})
    with pytest.raises(UserError, match='The loss of task "a" is None'):
        task_gradients(lambda s: {"a": None}, tf.ones([4, 3]))
