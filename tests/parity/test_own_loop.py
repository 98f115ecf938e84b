"""Losses and the gradient of every variable, in an own loop, against live PyTorch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import gradalign as ga

from . import oracle
from .keras_side import (
    ERROR,
    assert_near,
    assign,
    base_model,
    compiled_matrix_products,
    discriminator_model,
    in_mode,
    named_variables,
)
from .own_loop import OwnLoop
from .problems import CASES, FIELDS, SHARED_DIM, WIDTH, Case, batch_of, start_weights
from .test_fit import ADAM_RUNS, FIVE, SGD_RUNS

WEIGHT, LOSS_WEIGHTS = 0.7, {"buy": 0.5}
EVERY = [("eager", case) for case in CASES]
# A trace and a compilation cost seconds: in each of these modes, here or in test_fit.py, every level of every dimension
# (counted below).
TRACED = [
    ("graph", CASES[0]),
    ("graph", Case(3, "relu", "batch", private=False, labels="uneven", sample_weight=True)),
    ("graph", FIVE),
]
COMPILED = [
    ("jit", CASES[14]),
    ("jit", FIVE),
]
REACH_SHARED = [("eager", CASES[8]), ("jit", CASES[5])]  # graph: test_fit.py


def run(case, mode, batch, start, *, shared="row", width=WIDTH, tasks=None, **settings):
    """One step of GradAlign at the weights `start`: `{name: array}`, and the names of its variables."""
    base = base_model(case, shared)
    entries = (WIDTH,) if width == WIDTH else (FIELDS, width)  # D meets the positions of a row together
    discriminator = discriminator_model(len(tasks or case.names), entries)
    alignment = ga.AdversarialAlignment(
        WEIGHT,
        discriminator=discriminator,
        normalize=case.normalize,
        schedule=1.0,
        tasks=tasks,
        row_task="which" if case.row_task else None,
        **settings,
    )
    variables = named_variables(base, discriminator)
    assign(variables, start)
    loop = OwnLoop(case, base, alignment, variables, batch, LOSS_WEIGHTS)
    if mode != "eager":  # Built within a function, it would have that traced twice.
        alignment.build_for(list(case.names), [[None, *base.get_layer("shared").output.shape[1:]]], base.compute_dtype)
    if mode == "eager":
        found = loop.step(apart=True)
    else:
        step = in_mode(loop.step, mode)
        found = step()
        assert (compiled_matrix_products(step.get_concrete_function()) > 0) == (mode == "jit")
    return {name: value.numpy() for name, value in found.items()}, list(variables)


def compare(case, mode, dtype="float64", *, shared="row", width=WIDTH, tasks=None, **settings):
    """One step on both sides at the same weights; everything that both know is compared."""
    batch = batch_of(case)
    start = start_weights(case, inputs=width, seen=len(tasks or case.names))
    got, names = run(case, mode, batch, start, shared=shared, width=width, tasks=tasks, **settings)
    seen = tuple(task for task in case.names if task in (tasks or case.names))
    network = case.network(loss_weights=LOSS_WEIGHTS, aligned=seen, **settings)
    wanted = oracle.step(network, oracle.tensors(start, getattr(torch, dtype)), batch, WEIGHT)
    error = ERROR[dtype]
    assert got["total"].dtype == dtype
    assert got["total"] == pytest.approx(wanted.total, rel=error)
    assert got["alignment"] == pytest.approx(wanted.alignment, rel=error)
    for task in case.names:
        assert got[f"loss/{task}"] == pytest.approx(wanted.losses[task], rel=error)
    rows = {task: got[f"row/{task}"].reshape(wanted.row_gradients[task].shape) for task in case.names}
    assert_near(rows, wanted.row_gradients, error)
    assert_near({name: got[f"J/{name}"] for name in names}, wanted.gradients, error)
    if mode == "eager":
        # Where dA is zero in exact arithmetic (dead path), rounding is measured against dJ of the same variable.
        assert_near({name: got[f"A/{name}"] for name in names}, wanted.alignment_gradients, error, wanted.gradients)


@pytest.mark.parametrize(("mode", "case"), EVERY + TRACED + COMPILED, ids=str)
def test_float64(mode, case, floatx):
    compare(case, mode)


@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_every_level_is_in_every_mode(mode):
    runs = [*TRACED, *COMPILED, *REACH_SHARED, *SGD_RUNS, *ADAM_RUNS]
    for dimension in ("tasks", "activation", "normalize", "private", "labels", "row_task", "sample_weight"):
        everywhere = {getattr(case, dimension) for case in CASES}
        assert {getattr(case, dimension) for of_run, case in runs if of_run == mode} == everywhere, dimension


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize(("mode", "case"), [*EVERY[::3], ("jit", CASES[1])], ids=str)
def test_float32(mode, case, dtype, floatx):
    compare(case, mode, dtype)


def test_under_autograph(floatx):
    """A plain `@tf.function`, which rewrites the Python that it traces."""
    compare(Case(2, "tanh", "batch", private=False, labels="uneven"), "autograph")


def test_keras_own_gelu(floatx):
    """The activation named "gelu", which holds a constant in float32, against PyTorch with the same constant."""
    point = np.linspace(-3.0, 3.0, 13)
    found = keras.activations.gelu(tf.constant(point), approximate=False).numpy()
    references = {name: oracle.ACTIVATIONS[name](torch.tensor(point)) for name in ("gelu_root_half", "gelu_root_two")}
    # The two are 1e-8 apart, so that at most one of them is meant.
    [name] = [n for n, wanted in references.items() if np.allclose(found, wanted, rtol=1e-12, atol=1e-14)]
    compare(Case(3, name, "batch", labels="uneven"), "eager")


@pytest.mark.parametrize(("normalize", "mode"), [("l2", "eager"), ("batch", "graph")])
def test_per_position(normalize, mode, floatx):
    """s (B, F, d): the gradient at every field is a row of its own, d wide."""
    case = Case(3 if mode == "eager" else 2, "gelu", normalize, labels="uneven")
    compare(case, mode, shared="position", width=SHARED_DIM, per="position")


def test_a_shared_tensor_of_rank_3_is_flattened_per_row(floatx):
    compare(Case(2, "tanh", "l2", labels="uneven"), "eager", shared="position")


@pytest.mark.parametrize(("mode", "case"), REACH_SHARED, ids=str)
def test_reach_shared(mode, case, floatx):
    """Towers and private tables are outside the alignment's reach; the shared table and D are not."""
    compare(case, mode, reach="shared")


@pytest.mark.parametrize("tasks", [["click", "like"], ["like", "buy"]], ids="-".join)
def test_a_subset_of_tasks(tasks, floatx):
    """D names the chosen ones, in the order of the tasks; the others train without it."""
    compare(Case(3, "tanh", "batch", labels="uneven"), "eager", tasks=tasks)


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_a_batch_in_which_no_task_has_a_label(mode, floatx):
    """Every loss and every gradient is 0, and nothing is NaN."""
    case = Case(2, "tanh", "batch", private=False)
    full = batch_of(case)
    empty = oracle.Batch(full.ids, {task: np.full(len(full.ids), np.nan) for task in case.names})
    got, _ = run(case, mode, empty, start_weights(case))
    assert all(np.array_equal(value, np.zeros(value.shape)) for value in got.values())


@pytest.mark.parametrize("method", ["l2", "batch", "none"])
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_normalize_alone(method, mode):
    """`ga.gradients.normalize`: value, first and second derivative, with a row of zeros among the rows."""
    rng = np.random.default_rng(2)
    rows, left, right = rng.normal(size=(3, 5, 4))
    rows[2] = 0.0
    alive = [0, 1, 3, 4]

    def first_and_second():
        x = tf.constant(rows)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                q = ga.gradients.normalize(x, method)
                value = tf.reduce_sum(left * q**3)
            first = inner.gradient(value, x)
            pulled = tf.reduce_sum(right * first)
        return q, first, outer.gradient(pulled, x)

    got = [value.numpy() for value in in_mode(first_and_second, mode)()]
    x = torch.tensor(rows[alive], requires_grad=True)
    q = oracle.normalise(x, method)
    (first,) = torch.autograd.grad((torch.tensor(left[alive]) * q**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((torch.tensor(right[alive]) * first).sum(), x)
    for mine, wanted in zip(got, (q, first, second), strict=True):
        np.testing.assert_allclose(mine[alive], wanted.detach().numpy(), rtol=1e-9, atol=1e-12)
        assert not mine[2].any()


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_gradients_of_higher_order(mode):
    """`grads[task]` is differentiable to any order: the third derivative, as `create_graph=True` gives it twice."""
    rng = np.random.default_rng(4)
    start, left, right = rng.normal(size=(3, 4, 3))

    def third():
        x = tf.constant(start)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                _, grads = ga.task_gradients(lambda s: {"a": tf.reduce_sum(tf.tanh(s) ** 3, axis=1)}, x)
                pulled = tf.reduce_sum(left * grads["a"] ** 2)
            again = tf.reduce_sum(right * inner.gradient(pulled, x))
        return outer.gradient(again, x)

    got = in_mode(third, mode)().numpy()
    x = torch.tensor(start, requires_grad=True)
    (g,) = torch.autograd.grad((torch.tanh(x) ** 3).sum(), x, create_graph=True)
    (pulled,) = torch.autograd.grad((torch.tensor(left) * g**2).sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad((torch.tensor(right) * pulled).sum(), x)
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-9, atol=1e-12)
