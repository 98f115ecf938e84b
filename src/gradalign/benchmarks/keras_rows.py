"""Rows of Keras' own training loop: the plain step, and ours."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.alignment import AdversarialAlignment
from gradalign.benchmarks.graph_flops import graph_flops
from gradalign.benchmarks.problem import STRENGTH, Problem, optimizers
from gradalign.benchmarks.row import Row
from gradalign.diagnostics.gradient_monitor import GradientMonitor
from gradalign.multi_task_model import MultiTaskModel

__all__ = ["aligned", "aligned_model", "monitored", "named_weights", "plain", "plain_model", "row_of"]

LOSS = "binary_crossentropy"


def plain_model(problem: Problem, jit_compile: Any = False, base: keras.Model | None = None) -> keras.Model:
    """Return the base, compiled: its tasks are trained by `keras.Model`'s own train step."""
    model = base or problem.base()
    model.compile(optimizers(problem)[0], loss=dict.fromkeys(problem.tasks, LOSS), jit_compile=jit_compile)
    return model


def aligned_model(
    problem: Problem, base: keras.Model | None = None, tables: Any = None, **settings: Any
) -> MultiTaskModel:
    """Return the base in a `MultiTaskModel` with an adversarial alignment, compiled.

    Args:
        problem: the case.
        base: the base instead of the case's.
        tables: the optimizer of the tables instead of the usual one.
        **settings: of the alignment, on top of the case's.
    """
    alignment = AdversarialAlignment(STRENGTH, schedule=1.0, **{**problem.alignment, **settings})
    model = MultiTaskModel(base or problem.base(), problem.shared, alignment)
    alignment.discriminator.set_weights(problem.discriminator().get_weights())
    of_model, of_discriminator = optimizers(problem, tables=tables)
    model.compile(
        of_model, loss=dict.fromkeys(problem.tasks, LOSS), discriminator_optimizer=of_discriminator, jit_compile="auto"
    )
    return model


def plain(problem: Problem, jit_compile: Any = False) -> Row:
    """Return the row of the plain step."""
    return row_of(plain_model(problem, jit_compile), problem)


def aligned(problem: Problem, **settings: Any) -> Row:
    """Return the row of the aligned step."""
    return row_of(aligned_model(problem, **settings), problem)


def monitored(problem: Problem) -> Row:
    """Return the row of the aligned step under a `GradientMonitor` as its defaults are, a look every so many steps."""
    model = aligned_model(problem)
    row = row_of(model, problem)
    monitor = GradientMonitor(problem.batches[0])
    monitor.set_model(model)
    monitor.on_train_begin()

    def look() -> None:
        # An epoch with fewer batches than the interval has one look, at its end.
        monitor.on_epoch_begin(0)
        monitor.on_epoch_end(0, {})

    # Its matrix products are not counted: they are as few as its steps are seldom.
    return dataclasses.replace(row, flops=None, seldom=look, every=monitor.every)


def row_of(model: Any, problem: Problem) -> Row:
    """Return a row that runs what `fit` runs: the model's train function on an iterator of batches."""
    dataset = problem.dataset()
    batches = iter(dataset)
    model.make_train_function()
    base, discriminator, aligned_share = model, None, 1.0
    if isinstance(model, MultiTaskModel):
        assert isinstance(model.alignment, AdversarialAlignment)
        base, discriminator, aligned_share = model.base, model.alignment.discriminator, 1 / model.alignment.every
        model.prepare(*dataset.element_spec)
    return Row(
        step=lambda: model.train_function(batches),
        flops=lambda: graph_flops(model.train_step, dataset.element_spec, taken=aligned_share),
        weights=lambda: named_weights(base, discriminator),
    )


def named_weights(base: keras.Model, discriminator: keras.Model | None) -> dict[str, np.ndarray]:
    """Return every trained weight of both, by the path in the base and by number in the discriminator."""
    found = {variable.path: variable.numpy() for variable in base.trainable_variables}
    own = [] if discriminator is None else discriminator.trainable_variables
    return {**found, **{f"discriminator/{number}": variable.numpy() for number, variable in enumerate(own)}}


def default_differs() -> str | None:
    """Say so where Keras' own default runs the same graph as the plain row."""
    probe = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    probe.compile("sgd", loss="mse", jit_compile="auto")
    return None if probe.jit_compile else "Keras' default is the graph here"


def wait() -> None:
    """Wait until all devices are done."""
    tf.test.experimental.sync_devices()
