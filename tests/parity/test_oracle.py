"""The oracle itself: its gradients against finite differences of its own values, its rules against hand values."""

from __future__ import annotations

from itertools import combinations, cycle, product

import numpy as np
import pytest
import torch

from . import oracle
from .problems import CASES, Case, batch_of, start_weights

SMOOTH = [case for case in CASES if case.activation != "relu"]


def central_difference(value, weights, name, direction, h=1e-5):
    moved = [{**weights, name: weights[name] + side * h * direction} for side in (1, -1)]
    return (value(moved[0]) - value(moved[1])) / (2 * h)


@pytest.mark.parametrize(
    ("case", "strength"), list(zip([*SMOOTH[::3], CASES[-1]], cycle([1.0, 0.3]), strict=False)), ids=str
)
def test_every_gradient_agrees_with_finite_differences(case, strength):
    network, batch, start = case.network(loss_weights={"buy": 0.5}), batch_of(case), start_weights(case)
    result = oracle.step(network, oracle.tensors(start), batch, strength)

    def values(weights):
        found = oracle.step(network, oracle.tensors(weights), batch, strength)
        return np.array([found.total - found.alignment, found.alignment])

    rng = np.random.default_rng(3)
    for name, gradient in result.gradients.items():
        direction = rng.normal(size=gradient.shape)
        tasks, alignment = central_difference(values, start, name, direction)
        sign = 1.0 if name.startswith("discriminator/") else -strength  # only D descends A
        aligned = result.alignment_gradients[name]
        assert np.vdot(aligned, direction) == pytest.approx(sign * alignment, rel=1e-6, abs=1e-9)
        assert np.vdot(gradient, direction) == pytest.approx(tasks + sign * alignment, rel=1e-6, abs=1e-9)


def test_the_second_order_path_is_alive_where_it_should_be():
    for normalize in ("l2", "batch", "none"):
        case = Case(2, "tanh", normalize)
        result = oracle.step(case.network(), oracle.tensors(start_weights(case)), batch_of(case))
        for name, gradient in result.alignment_gradients.items():
            last_bias = name.endswith(f"{2}/bias") and name.startswith("tower")
            if not (normalize == "l2" and last_bias):
                assert np.abs(gradient).max() > 1e-4, (normalize, name)


def test_relu_with_l2_is_dead_at_the_shared_table_and_shut_rows_are_left_out():
    case = Case(2, "relu", "l2")
    result = oracle.step(case.network(), oracle.tensors(start_weights(case)), batch_of(case))
    assert np.abs(result.alignment_gradients["shared"]).max() < 1e-14
    zero = ~result.row_gradients["click"].any(axis=1)
    assert 0 < zero.sum() < len(zero)
    assert len(result.correct["click"]) == (~zero).sum()


def test_row_gradients_are_those_of_the_sum():
    case = Case(2, "tanh", labels="uneven", sample_weight=True)
    batch, weights = batch_of(case), oracle.tensors(start_weights(case))
    both = oracle.step(case.network(), weights, batch)
    keep = slice(0, 3)
    part = oracle.Batch(
        batch.ids[keep],
        {task: label[keep] for task, label in batch.labels.items()},
        {task: weight[keep] for task, weight in batch.weights.items()},
    )
    fewer = oracle.step(case.network(), weights, part)
    for task in case.names:
        np.testing.assert_allclose(fewer.row_gradients[task], both.row_gradients[task][keep], rtol=1e-12)


def test_reach_shared_keeps_only_the_path_through_the_shared_tensor():
    case = Case(3, "gelu")
    batch, start = batch_of(case), start_weights(case)
    everything = oracle.step(case.network(), oracle.tensors(start), batch).alignment_gradients
    shared = oracle.step(case.network(reach="shared"), oracle.tensors(start), batch).alignment_gradients
    for name in start:
        if name == "shared" or name.startswith("discriminator/"):
            np.testing.assert_allclose(shared[name], everything[name], rtol=1e-12)
        else:
            assert not shared[name].any() and everything[name].any(), name


def test_normalise_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    np.testing.assert_allclose(oracle.normalise(rows, "l2").numpy(), [[0.6, 0.8], [0.0, 1.0]])
    np.testing.assert_allclose(oracle.normalise(rows, "batch").numpy(), rows.numpy() / np.sqrt(13.0))
    assert oracle.normalise(rows, "none") is rows


def test_the_cases_cover_every_pair():
    fields = ("tasks", "activation", "normalize", "private", "labels")
    levels = {name: sorted({getattr(case, name) for case in CASES}) for name in fields}
    assert [len(levels[name]) for name in fields] == [3, 4, 3, 2, 3]
    for one, two in combinations(fields, 2):
        seen = {(getattr(case, one), getattr(case, two)) for case in CASES}
        assert seen == set(product(levels[one], levels[two])), (one, two)
    for method in levels["normalize"]:
        assert any(case.row_task and case.normalize == method for case in CASES)
        assert any(case.sample_weight and case.normalize == method for case in CASES)
