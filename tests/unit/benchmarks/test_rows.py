"""Every row of the table takes a real step, and those that claim one update have it: else nothing is compared."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import tensorflow as tf

from gradalign.benchmarks import child, pytorch_rows
from gradalign.benchmarks.cases import CASES, Case, Network, smaller
from gradalign.benchmarks.flops import forward_flops
from gradalign.benchmarks.input_rows import INPUT_ROWS
from gradalign.benchmarks.problem import problem_of
from gradalign.benchmarks.registry import problem_for, rows_of
from gradalign.benchmarks.rows import STEP_ROWS

pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")  # which leaves tf.data as it is

NETWORK = Network((7, 5), dim=3, encoder=(6,), towers=(4,), activation="gelu")
BATCH = 16
SAME_AS_ALIGNED = ("aligned-monitored", "recipe-eager", "recipe-graph", "pytorch-reference")


@pytest.fixture(scope="module")
def rows():
    problem = dataclasses.replace(problem_of(Case("test", "", network=NETWORK, batch=BATCH)), sgd=True)
    return {name: kind.make(problem) for name, kind in STEP_ROWS.items() if kind.missing() is None}


@pytest.fixture(scope="module")
def updates(rows):
    """How far one step moves every weight, {row: {weight: array}}."""
    found = {}
    for name, row in rows.items():
        tf.config.run_functions_eagerly(name != "recipe-graph")  # a trace for one step takes seconds
        before = row.weights()
        row.warm_up()
        found[name] = {path: array - before[path] for path, array in row.weights().items()}
    tf.config.run_functions_eagerly(False)
    return found


def test_every_row_steps(updates):
    assert {"plain", "aligned", *SAME_AS_ALIGNED} <= updates.keys()
    for name, update in updates.items():
        assert all(np.isfinite(u).all() for u in update.values()), name
        still = [path for path, u in update.items() if not np.abs(u).max() > 0]
        # The plain step of PyTorch holds a discriminator too, and leaves it alone.
        assert all(path.startswith("discriminator/") for path in still) if "plain" in name else not still, name


def test_rows_with_one_update_agree(updates):
    """From the same weights on the same batch, under plain descent: the shared table, towers and the discriminator."""
    for names, first in ((SAME_AS_ALIGNED, "aligned"), (("pytorch-plain",), "plain")):
        for name in names:
            for path, wanted in updates[first].items():
                got = updates[name][path]
                np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max(), err_msg=path)
    shared = "shared_embedding/table"
    assert not np.allclose(updates["aligned"][shared], updates["plain"][shared], rtol=0.01), "the alignment shows"


def test_flops_are_those_of_the_formulas(rows, updates):
    below, above = 2 * BATCH * 6 * 6, 2 * BATCH * 2 * (6 * 4 + 4 * 1)
    discriminator = 2 * BATCH * 2 * (6 * 64 + 64 * 64 + 64 * 2)
    formula = forward_flops(NETWORK, BATCH)
    assert (formula.below, formula.above, formula.discriminator) == (below, above, discriminator)
    plain, aligned = 3 * (below + above), 3 * below + 6 * above + 3 * discriminator
    assert (formula.plain, formula.aligned) == (plain, aligned)
    assert formula.aligned_piecewise_linear == aligned - 2 * above
    # The discriminator's first layer on the factors: as wide as the hidden layer, and what the two kernels make.
    factored = aligned - 3 * 2 * 2 * 64 * (BATCH * 6 - BATCH * 4 - 6 * 4)
    wanted = {"pytorch-plain": plain, "pytorch-reference": aligned, "aligned-every": (factored + 3 * plain) / 4}
    assert {name: rows[name].flops() for name in wanted} == wanted


def test_flops_of_experts():
    network = dataclasses.replace(NETWORK, experts=2, expert_units=(5,), private_dim=2)
    experts, gates, towers = 2 * 6 * 5, 2 * 6 * 2, 2 * ((5 + 2 * 2) * 4 + 4)
    assert forward_flops(network, BATCH).above == 2 * BATCH * (experts + gates + towers)


@pytest.mark.parametrize("changes", [{"private_dim": 2, "activation": "relu"}, {"experts": 2, "expert_units": (5,)}])
def test_the_model_in_pytorch_is_that_in_keras(changes):
    network = dataclasses.replace(NETWORK, encoder=(), **changes)
    problem = problem_of(Case("test", "", network=network, batch=BATCH))
    x, _ = problem.batches[0]
    model = pytorch_rows._Model(problem)
    ids = pytorch_rows.torch.tensor(np.stack(list(x.values()), axis=1)).long()
    logits = model.logits(model.shared(ids), ids)
    for task, probability in problem.base()(x).items():
        np.testing.assert_allclose(logits[task].sigmoid().detach(), probability, rtol=1e-5)


def test_the_tables_case_trains():
    tf.config.run_functions_eagerly(True)  # no trace for one step
    case = smaller(CASES["tables"])
    problem = problem_for(case)
    row = rows_of(case)["lazy-adam-large"].make(problem)
    before = row.weights()
    row.step()
    after = row.weights()
    tables = [path for path in after if path.endswith("/table")]
    assert len(tables) == 3
    for path, ids in zip(tables, problem.batches[0][0].values(), strict=True):
        moved = np.flatnonzero(np.abs(after[path] - before[path]).max(axis=1))
        assert set(moved) == set(ids), "LazyAdam moves the batch's rows and no other"


def test_an_epoch_from_parquet_is_the_epoch_from_arrays(monkeypatch):
    epoch = problem_for(dataclasses.replace(smaller(CASES["input"]), row_limit=100))
    assert (epoch.rows, epoch.steps) == (100, 2)
    for cached in (False, True, True):
        assert np.array_equal(epoch.encoded(cached=cached).records, epoch.prepared.train.records)
    seen = []

    class Model:
        def fit(self, batches, steps_per_epoch, **_):
            seen.extend(len(next(iter(of_tasks.values()))) for _, of_tasks in batches)
            assert steps_per_epoch == len(seen)

    monkeypatch.setattr(epoch, "model", Model)
    for name in set(INPUT_ROWS) - {"bare-step"}:
        INPUT_ROWS[name].make(epoch).step()
        assert seen == [64, 36], name
        seen.clear()


def test_children_measure_a_first_step_and_memory(monkeypatch):
    monkeypatch.setattr("gradalign.benchmarks.machine.prepare_process", lambda: None)  # this process is not theirs
    tf.config.run_functions_eagerly(True)
    case = smaller(CASES["ranking"])
    before = time.time()
    found = child.first_step(case, "plain")
    assert before < found["called"] < found["stepped"] < time.time()
    measured = child.memory(case, "plain")
    assert measured["whole"] > measured["over_imports"] >= 0 and measured["whole"] > 2**26


def test_pytorch_that_is_missing_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (
        STEP_ROWS["pytorch-plain"].missing() == STEP_ROWS["pytorch-reference"].missing() == "PyTorch is not installed"
    )
