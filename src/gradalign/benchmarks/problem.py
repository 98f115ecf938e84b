"""A case made concrete: its batches as arrays, and models that all start from the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.alignment import mlp_discriminator
from gradalign.benchmarks.cases import Case, Network
from gradalign.benchmarks.networks import base_model, shared_layer
from gradalign.layers import Categorical
from gradalign.optimizers import for_embeddings

__all__ = ["Problem", "optimizers", "problem_of"]

BATCHES = 4  # different ones, in turn
STRENGTH = 0.1  # of the reversal, in every row
RATE, DISCRIMINATOR_RATE = 1e-3, 1e-2

Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Problem:
    """What all rows of a case train.

    Args:
        network: the model; its sizes are those of the data.
        batches: ({field: ids (B,)}, {task: labels (B, 1)}).
        alignment: arguments of `AdversarialAlignment` that are not the defaults.
        sgd: plain descent for everything, so that an update shows its gradient.
    """

    network: Network
    batches: list[Batch]
    alignment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sgd: bool = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks' names."""
        return self.network.task_names

    @property
    def shared(self) -> str:
        """The name of the layer that gives the shared tensor."""
        return shared_layer(self.network)

    def base(self) -> keras.Model:
        """Return the model, with the same weights each time."""
        keras.utils.set_random_seed(1)
        return base_model(self.network, list(self.batches[0][0]))

    def discriminator(self) -> keras.Model:
        """Return the default discriminator, with the same weights each time."""
        keras.utils.set_random_seed(2)
        return mlp_discriminator(self.network.shared_width, len(self.tasks))

    def dataset(self) -> tf.data.Dataset:
        """Return the batches, one after the other without an end, from tensors in memory."""
        stacked = tf.nest.map_structure(lambda *parts: tf.constant(np.stack(parts)), *self.batches)
        return tf.data.Dataset.from_tensor_slices(stacked).repeat()


def optimizers(problem: Problem, *, tables: Any = None) -> tuple[Any, Any]:
    """Return a model's optimizer and a discriminator's.

    Adam, and for the tables plain descent, in every row of every library: what is compared is the step, and libraries
    differ more in how they update a table than in everything else.

    Args:
        problem: the case.
        tables: the tables' optimizer instead.
    """
    if problem.sgd:
        return keras.optimizers.SGD(1.0), keras.optimizers.SGD(1.0)
    tables = tables or keras.optimizers.SGD(RATE)
    return for_embeddings(tables, keras.optimizers.Adam(RATE)), keras.optimizers.Adam(DISCRIMINATOR_RATE)


def problem_of(case: Case, *, seed: int = 0) -> Problem:
    """Return the problem of a case; random ids and labels, or Census-Income where the case names no network."""
    if case.network is None:
        return _census(case)
    draw = np.random.default_rng(seed)
    network = case.network
    batches = []
    for _ in range(BATCHES):
        x = {f"field_{i}": draw.integers(0, size, case.batch, "int32") for i, size in enumerate(network.sizes)}
        y = {task: draw.integers(0, 2, (case.batch, 1)).astype("float32") for task in network.task_names}
        batches.append((x, y))
    return Problem(network, batches, case.alignment)


def _census(case: Case) -> Problem:
    from gradalign.training.build import prepare
    from gradalign.training.config_file import load_config
    from gradalign.training.rows import read_tables

    limit = [f"data.limit={case.row_limit or 2 * BATCHES * case.batch}"]
    config = load_config("census-income", limit)
    prepared = prepare(config, read_tables(config.data))
    settings, fields = config.model, prepared.preprocessing.fields
    network = Network(
        tuple(field.size for field in fields.values() if isinstance(field, Categorical)),
        dim=settings.shared_dim,
        private_dim=settings.private_dim,
        towers=tuple(settings.towers),
        activation=settings.activation,
        tasks=len(config.tasks),
    )
    x, y = prepared.train
    batches = []
    for start in range(0, BATCHES * case.batch, case.batch):
        rows = slice(start, start + case.batch)
        labels = zip(network.task_names, y.values(), strict=True)
        batches.append(({n: x[n][rows] for n in fields}, {task: of_task[rows, None] for task, of_task in labels}))
    return Problem(network, batches, case.alignment)
