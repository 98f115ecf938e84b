"""`MultiTaskModel` under `fit`, three steps: losses, gradients and weights against live PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from . import oracle
from .fitting import ADVERSARY_RATE, LOSS_WEIGHTS, RATE, STEPS, WEIGHT, fit
from .keras_side import assert_near, compiled_matrix_products, train_functions
from .problems import Case, batch_of, one_range_a_field

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

GANIN = {"schedule": "ganin", "total_steps": STEPS}
TWO = Case(2, "gelu", "batch", labels="absent")
THREE = Case(3, "tanh", "l2", labels="uneven", sample_weight=True)
FIVE = Case(5, "softplus", "none", private=False, labels="uneven", row_task=True)
RELU = Case(2, "relu", "batch", labels="uneven", sample_weight=True)
# A trace costs seconds, a compilation many. Together: T = 2, 3, 5, every normalisation, both optimizers, the
# schedule in every mode; graphs and compilations of more tasks, and without normalisation, are in test_own_loop.py.
COMPILED = {
    "sgd": Case(2, "tanh", "l2", labels="uneven", sample_weight=True),
    "adam": Case(2, "tanh", "batch", private=False, labels="absent"),
}
SGD_CASES = {"eager": (TWO, THREE, FIVE, RELU), "graph": (TWO,), "jit": (COMPILED["sgd"],)}
SGD_RUNS = [(mode, case) for mode, cases in SGD_CASES.items() for case in cases]
ADAM_RUNS = [("eager", TWO), ("jit", COMPILED["adam"])]


def strengths(settings: dict) -> list[float]:
    """weight × (2 / (1 + exp(-10 p)) - 1), p = steps taken / total steps: 0 in the first step."""
    if settings.get("schedule") != "ganin":
        return [WEIGHT] * STEPS
    return [WEIGHT * (2.0 / (1.0 + math.exp(-10.0 * step / STEPS)) - 1.0) for step in range(STEPS)]


def in_torch(case, start, optimizer, at, batches=None, **settings):
    kind, extra = {"sgd": (torch.optim.SGD, {}), "adam": (torch.optim.Adam, {"eps": 1e-30})}[optimizer]
    network = case.network(loss_weights=LOSS_WEIGHTS, **settings)
    batches = batches or [batch_of(case, seed) for seed in range(STEPS)]
    rates = {"learning_rate": RATE, "discriminator_learning_rate": ADVERSARY_RATE}
    return oracle.train(network, start, batches, at, kind, **rates, **extra)


def assert_compiled(fitted) -> None:
    assert fitted.model.jit_compile is True
    step = train_functions(fitted.model)[0].get_concrete_function(iter(fitted.data))
    assert compiled_matrix_products(step) > 10


def assert_gradients_at_equal_weights(case, fitted, at, batches=None, **settings) -> None:
    network = case.network(loss_weights=LOSS_WEIGHTS, **settings)
    batches = batches or [batch_of(case, seed) for seed in range(STEPS)]
    for weights, gradients, batch, a in zip(fitted.weights, fitted.gradients, batches, at, strict=True):
        wanted = oracle.step(network, oracle.tensors(weights), batch, a)
        assert_near(gradients, wanted.gradients, 1e-9)


def assert_history(case, history, results) -> None:
    """Keras' metrics are float32."""
    for step, result in enumerate(results):
        assert history["loss"][step] == pytest.approx(result.total, rel=1e-6)
        assert history["alignment_loss"][step] == pytest.approx(result.alignment, rel=1e-6)
        for task in case.names:
            assert history[f"{task}_loss"][step] == pytest.approx(result.losses[task], rel=1e-6)
        # Like A, the accuracy is a mean over tasks of means over rows.
        accuracy = np.mean([named.mean() for named in result.correct.values()])
        assert history["discriminator_accuracy"][step] == pytest.approx(accuracy, rel=1e-6)


@pytest.mark.parametrize(("mode", "case"), SGD_RUNS, ids=str)
def test_sgd(mode, case, floatx):
    settings = GANIN if case in (TWO, FIVE) else {"schedule": 1.0}
    fitted, at = fit(case, mode, "sgd", **settings), strengths(settings)
    wanted = in_torch(case, fitted.start, "sgd", at)
    assert_near(fitted.last, wanted.weights, 1e-9)
    assert_gradients_at_equal_weights(case, fitted, at)
    assert_history(case, fitted.history, wanted.results)
    if mode == "jit":
        assert_compiled(fitted)


@pytest.mark.parametrize(("mode", "case"), ADAM_RUNS, ids=str)
def test_adam(mode, case, floatx):
    """Keras rounds Adam's betas to float32, so the weights part at 1e-5; the gradients must not.

    Table rows that a batch looks up twice show whether their gradients are added before Adam squares them.
    """
    fitted, at = fit(case, mode, "adam", **GANIN), strengths(GANIN)
    assert_gradients_at_equal_weights(case, fitted, at)
    assert_near(fitted.last, in_torch(case, fitted.start, "adam", at).weights, 1e-4)
    if mode == "jit":
        assert_compiled(fitted)


def test_reach_shared(floatx):
    """The second-order gradient goes through the shared tensor alone; what is above it learns the tasks only."""
    case = Case(2, "gelu", "batch", labels="uneven")  # other cases and modes in test_own_loop.py
    fitted, at = fit(case, "graph", "sgd", schedule=1.0, reach="shared"), strengths({})
    assert_gradients_at_equal_weights(case, fitted, at, reach="shared")
    assert_near(fitted.last, in_torch(case, fitted.start, "sgd", at, reach="shared").weights, 1e-9)


def test_the_architecture_of_the_library(floatx):
    """`architectures.shared_private`: its tables for all fields at once, its towers, cross-entropy of probabilities."""
    case = TWO
    fitted, at = fit(case, "graph", "sgd", library=True, schedule=1.0), strengths({})
    batches = [one_range_a_field(batch_of(case, seed)) for seed in range(STEPS)]
    assert_gradients_at_equal_weights(case, fitted, at, batches)
    assert_near(fitted.last, in_torch(case, fitted.start, "sgd", at, batches).weights, 1e-9)


def test_multi_class_heads(floatx):
    case = Case(3, "gelu", "l2", labels="uneven", classes=3)
    fitted, at = fit(case, "eager", "sgd", schedule=1.0), strengths({})
    assert_gradients_at_equal_weights(case, fitted, at)
    assert_near(fitted.last, in_torch(case, fitted.start, "sgd", at).weights, 1e-9)


def test_the_schedule_grows_from_zero():
    at = strengths(GANIN)
    assert at[0] == 0.0 < at[1] < at[2] < WEIGHT
