"""Losses and loss weights by task."""

from __future__ import annotations

import keras
import pytest

from gradalign.errors import UserError
from gradalign.tasks import loss_weights_by_task, losses_by_task

TASKS = ["click", "buy", "like"]


def test_losses_come_in_task_order_without_those_that_are_none():
    found = losses_by_task({"like": "mse", "buy": None, "click": "bce"}, TASKS, [])
    assert list(found.items()) == [("click", "bce"), ("like", "mse")]


def test_one_loss_for_every_task():
    assert losses_by_task("mse", TASKS, TASKS) == dict.fromkeys(TASKS, "mse")


@pytest.mark.parametrize(
    ("loss", "aligned", "message"),
    [
        (
            {"clik": "mse"},
            [],
            'loss names an unknown task "clik"; the tasks are click, buy, like. Did you mean "click"',
        ),
        ({"click": "mse", "buy": "mse"}, ["buy", "like"], r'Task "like" has no loss.*tasks=\[\'click\', \'buy\'\]'),
        ({}, [], "No task has a loss; give one to at least one of click, buy, like"),
        ({"buy": keras.losses.MeanSquaredError(reduction="sum")}, [], 'loss of task "buy" has reduction="sum"'),
    ],
    ids=["unknown", "aligned", "none", "sum"],
)
def test_losses_that_do_not_fit(loss, aligned, message):
    with pytest.raises(UserError, match=message):
        losses_by_task(loss, TASKS, aligned)


def test_missing_loss_weights_are_one():
    assert loss_weights_by_task({"buy": 2}, TASKS, {"click": "mse", "buy": "mse"}) == {"click": 1.0, "buy": 2.0}
    assert loss_weights_by_task(None, TASKS, {"like": "mse"}) == {"like": 1.0}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"bought": 1.0}, 'loss_weights names an unknown task "bought"'),
        ([1.0, 2.0], r"dict keyed by task; received \[1.0, 2.0\]"),
    ],
    ids=["unknown", "list"],
)
def test_loss_weights_that_do_not_fit(weights, message):
    with pytest.raises(UserError, match=message):
        loss_weights_by_task(weights, TASKS, {"buy": "mse"})
