"""Every Keras loss as a task of one model: its value, its second-order gradient, and what is said of flat ones."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from . import every_loss
from .every_loss import LOSSES

ROWS, STEP = 7, 1e-5


@dataclass
class Measured:
    """What one forward pass, and two beside it, tell of every task."""

    logged: dict[str, float]
    of_keras: dict[str, float]
    second: dict[str, float]
    differences: dict[str, float]
    alignment: tuple[float, float]


@pytest.fixture(scope="module")
def measured() -> Measured:
    """One model with all the losses at once, in float64."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    losses = every_loss.losses_of(LOSSES)
    base, (x, y) = every_loss.base(LOSSES), every_loss.data(LOSSES, ROWS)
    model = ga.MultiTaskModel(base, "encoder", ga.AdversarialAlignment(1.0, schedule=1.0, normalize="batch"))
    model.compile("sgd", loss=losses, run_eagerly=True)
    logs = model.evaluate(x, y, verbose=0, return_dict=True, batch_size=3)
    of_keras = {}
    for task, prediction in base(x).items():
        rows = ~np.isnan(y[task].reshape(ROWS, -1)).any(axis=1)
        loss = losses[task] if isinstance(losses[task], keras.losses.Loss) else keras.losses.get(losses[task])
        of_keras[task] = float(tf.reduce_mean(loss(y[task][rows], prediction.numpy()[rows])))

    rng = np.random.default_rng(1)
    cotangents = {task: tf.constant(rng.normal(size=(ROWS, 5))) for task in LOSSES}
    direction = tf.constant(rng.normal(size=(ROWS, 5)))

    def at(shift: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        forward = model.forward((x, y), training=True, aligned=True, shift=[shift])
        of_tasks = model.task_gradients_of(forward)
        along = {task: tf.reduce_sum(of_tasks[task][0] * cotangents[task]) for task in LOSSES}
        return along, model.alignment(of_tasks, forward.masks)

    with tf.GradientTape(persistent=True) as tape:
        shift = tf.zeros((ROWS, 5), "float64")
        tape.watch(shift)
        along, alignment = at(shift)
    second = {task: float(tf.reduce_sum(tape.gradient(value, shift) * direction)) for task, value in along.items()}
    reversed_ = -float(tf.reduce_sum(tape.gradient(alignment, shift) * direction))
    (forth, up), (back, down) = at(STEP * direction), at(-STEP * direction)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return Measured(
        {task: logs[f"{task}_loss"] for task in LOSSES},
        of_keras,
        second,
        {task: float(forth[task] - back[task]) / (2 * STEP) for task in LOSSES},
        (reversed_, float(up - down) / (2 * STEP)),
    )


def test_the_table_has_every_loss_of_keras():
    assert every_loss.covered() | every_loss.REFUSED == every_loss.existing()


@pytest.mark.parametrize("task", LOSSES)
def test_value_and_second_order(task, measured):
    assert measured.logged[task] == pytest.approx(measured.of_keras[task], rel=1e-9)
    assert measured.second[task] == pytest.approx(measured.differences[task], rel=1e-6, abs=1e-8)
    assert abs(measured.second[task]) > 1e-4


def test_the_alignment_of_them_all(measured):
    assert measured.alignment[0] == pytest.approx(measured.alignment[1], rel=1e-5)
    assert abs(measured.alignment[0]) > 1e-6
