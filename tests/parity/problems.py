"""Small random problems, as NumPy arrays: what both sides are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from .oracle import Batch, Network

ROWS, FIELDS, SHARED_DIM, PRIVATE_DIM, VOCABULARY = 7, 3, 2, 1, 9
WIDTH = FIELDS * SHARED_DIM  # D, of the shared tensor
TOWER, ADVERSARY = (5, 4), (8,)
TASK_NAMES = ("click", "buy", "like", "add", "watch")  # not in alphabetical order, so that sorting would show


@dataclass(frozen=True)
class Case:
    """One combination of everything that parity must cover."""

    tasks: int = 2
    activation: str = "tanh"
    normalize: str = "batch"
    private: bool = True
    labels: str = "all"  # "all", "uneven" (missing here and there) or "absent" (one task has none)
    row_task: bool = False
    sample_weight: bool = False
    classes: int = 1  # width of a tower's output

    def __str__(self) -> str:
        parts = [f"T{self.tasks}", self.activation, self.normalize]
        parts += (
            ["private" if self.private else "shared", self.labels]
            + ["row_task"] * self.row_task
            + ["weighted"] * self.sample_weight
        )
        return "-".join(parts + [f"{self.classes}classes"] * (self.classes > 1))

    @property
    def names(self) -> tuple[str, ...]:
        return TASK_NAMES[: self.tasks]

    def network(self, **settings: object) -> Network:
        return Network(tasks=self.names, activation=self.activation, normalize=self.normalize, **settings)


def mlp(rng: np.random.Generator, prefix: str, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    arrays = {}
    for i, (wide, out) in enumerate(pairwise(sizes)):
        arrays[f"{prefix}/{i}/kernel"] = rng.normal(size=(wide, out)) * 1.2 / np.sqrt(wide)
        arrays[f"{prefix}/{i}/bias"] = rng.normal(size=out) * 0.3
    return arrays


def start_weights(case: Case, seed: int = 0, *, inputs: int = WIDTH, seen: int | None = None) -> dict[str, np.ndarray]:
    """Every weight of the model and of a discriminator (B', inputs) -> (B', seen or T), by the oracle's names."""
    rng = np.random.default_rng(seed)
    weights = {"shared": rng.normal(size=(VOCABULARY, SHARED_DIM))}
    width = WIDTH + (FIELDS * PRIVATE_DIM if case.private else 0)
    for task in case.names:
        if case.private:
            weights[f"private/{task}"] = rng.normal(size=(VOCABULARY, PRIVATE_DIM))
        weights |= mlp(rng, f"tower/{task}", (width, *TOWER, case.classes))
    # The first task's last hidden layer is mostly shut, so that ReLU towers have labelled rows with a zero gradient.
    weights[f"tower/{case.names[0]}/{len(TOWER) - 1}/bias"] -= 1.2
    return weights | mlp(rng, "discriminator", (inputs, *ADVERSARY, seen or case.tasks))


def batch_of(case: Case, seed: int = 0) -> Batch:
    """One batch; ids repeat within it, labels are missing as the case says."""
    rng = np.random.default_rng(1000 + seed)
    ids = rng.integers(VOCABULARY, size=(ROWS, FIELDS))
    labels, weights = {}, {}
    for index, task in enumerate(case.names):
        label = rng.integers(max(2, case.classes), size=ROWS).astype("float64")
        missing = rng.permutation(ROWS)[: 1 + index % 4]
        if case.labels != "all":
            label[missing] = np.nan
        if case.labels == "absent" and index == 1:
            label[:] = np.nan
        labels[task] = label
        weight = rng.uniform(0.2, 3.0, size=ROWS)
        weight[rng.integers(ROWS)] = 0.0  # weight 0 says: no label
        if case.sample_weight and index != 0:  # a task that the dictionary leaves out weighs 1
            weights[task] = weight
    row_task = rng.permutation(np.arange(ROWS) % case.tasks) if case.row_task else None
    return Batch(ids, labels, weights, row_task)


def one_range_a_field(batch: Batch) -> Batch:
    """The batch with ids of field i in rows i V/F .. (i + 1) V/F - 1 of the tables, as one table for all fields has."""
    size = VOCABULARY // FIELDS
    return replace(batch, ids=batch.ids % size + size * np.arange(FIELDS))


# Every level of every dimension, and every pair of levels of the first five, without the full product
# (test_oracle.py counts them).
CASES = (
    Case(2, "tanh", "l2", True, "all"),
    Case(2, "tanh", "batch", False, "uneven", row_task=True),
    Case(2, "tanh", "none", True, "absent"),
    Case(3, "tanh", "batch", True, "absent", sample_weight=True),
    Case(5, "tanh", "none", False, "all", row_task=True),
    Case(2, "gelu", "batch", False, "absent", sample_weight=True),
    Case(3, "gelu", "l2", False, "uneven", row_task=True),
    Case(3, "gelu", "none", True, "all", classes=3),
    Case(5, "gelu", "l2", True, "absent"),
    Case(2, "softplus", "none", False, "uneven", row_task=True, sample_weight=True),
    Case(3, "softplus", "l2", True, "absent", sample_weight=True),
    Case(5, "softplus", "batch", True, "all"),
    Case(5, "softplus", "l2", False, "uneven", classes=3),
    Case(2, "relu", "none", True, "all"),
    Case(3, "relu", "batch", False, "all"),
    Case(5, "relu", "l2", False, "absent", row_task=True),
    Case(5, "relu", "batch", True, "uneven", sample_weight=True),
    Case(3, "relu", "none", False, "uneven"),
)
