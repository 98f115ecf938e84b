"""Data with a known answer: categorical fields, tasks that are alike by a given degree, and labels that are rare.

What a model can reach is known: the labels are drawn from probabilities that are a function of the row, and the AUC of
these probabilities is the oracle's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from gradalign.data.labels import labels
from gradalign.data.schema import Schema, TaskSpec
from gradalign.datasets.synthetic_arguments import (
    check_counts,
    check_numbers,
    check_room,
    rates_by_task,
    shares_by_task,
)
from gradalign.datasets.synthetic_logits import TaskLogits
from gradalign.errors import UserError, nearest
from gradalign.layers.fields import Categorical

__all__ = ["Synthetic", "synthetic"]

VERSION = 1  # of the rows that one set of arguments gives
LABELLED_SHARE = MappingProxyType({"sparse": 0.025, "dense": 1.0})
USER = "user"
PARTS = ("train", "validation", "test")
# Rows on which the intercepts are solved for: of no part, so that no part depends on another's number of rows.
_REFERENCE_ROWS = 1 << 17
_MOST_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """A synthetic data set, drawn part by part from one distribution.

    Args:
        train: `rows` rows of text columns "field_0", "field_1" ..., "user" in front where there are users, and of label
            columns "<task>_label" of 0 and 1, null where the row has no label.
        validation: other rows, all of them labelled.
        test: other rows, all of them labelled.
        schema: the tasks and the categorical features.
        group: "user" where there are users, else None: the column within which GAUC ranks.
        probabilities: {part: {task: float64 (rows,)}}, of a positive label, given the row's fields.
        oracle_auc: {task: AUC of the probabilities on the test rows}; None where these have one class only. No model's
            expected AUC on new rows is higher.
    """

    train: pa.Table
    validation: pa.Table
    test: pa.Table
    schema: Schema
    group: str | None
    probabilities: Mapping[str, Mapping[str, np.ndarray]]
    oracle_auc: Mapping[str, float | None]

    @property
    def tasks(self) -> dict[str, TaskSpec]:
        """Task name -> `TaskSpec`."""
        return dict(self.schema.tasks)

    @property
    def fields(self) -> dict[str, Categorical]:
        """Column -> `Categorical`, as `architectures.shared_private` takes it, for the ids that `arrays` returns."""
        columns = {name: self.train[name].chunk(0).dictionary for name in self.schema.columns}
        return {name: Categorical(len(values)) for name, values in columns.items()}

    def arrays(self, part: str = "train") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return `(x, y)` of a part as `fit` takes it.

        Args:
            part: "train", "validation" or "test".

        Returns:
            {column: int32 (rows,)}, a category's number from 0 on, and {task: float32 (rows,)}, NaN where there is no
            label.

        Raises:
            UserError: for another part.
        """
        if part not in PARTS:
            raise UserError(f"The parts are {', '.join(PARTS)}; received {part!r}.{nearest(str(part), PARTS)}")
        table = getattr(self, part)
        x = {name: table[name].chunk(0).indices.to_numpy() for name in self.schema.columns}
        return x, labels(table, self.schema)


def synthetic(
    rows: int = 200_000,
    *,
    validation_rows: int = 25_000,
    test_rows: int = 50_000,
    correlation: float = 0.8,
    labelled_share: Mapping[str, float] = LABELLED_SHARE,
    base_rates: float | Mapping[str, float] = 0.2,
    noise: float = 0.7,
    interaction: float = 0.1,
    fields: int = 10,
    categories: int = 50,
    skew: float = 0.5,
    users: int | None = None,
    seed: int = 0,
) -> Synthetic:
    """Draw a data set of categorical fields whose tasks' logits correlate as asked.

    A task's logit `z` is a shared effect of the fields and a private one, see `gradalign.datasets.synthetic_logits`.
    Its label is `z + b + noise · e > 0` with `e` logistic, so `sigmoid((z + b) / noise)` is the label's probability.

    Args:
        rows: of the training part, 1 or more.
        validation_rows: of the validation part.
        test_rows: of the test part.
        correlation: of two tasks' noiseless logits `z`, exact over all rows that can be drawn: from 0 to 1; for two
            tasks from -1.
        labelled_share: {task: share of the training rows that have the task's label}, above 0, up to 1. Its keys name
            the tasks. `round(share · rows)` rows, at least one, drawn by `seed`; those of a smaller share are among
            those of a larger one.
        base_rates: the tasks' shares of positive labels, between 0 and 1: one number, or {task: number}, 0.2 where it
            names no number. The intercepts `b` are solved for on 131,072 rows of their own, so a rate is met to about
            0.001 and the error of sampling.
        noise: scale of the logistic noise, above 0, beside a logit of variance 1; the larger, the lower the oracle's
            AUC.
        interaction: share of a logit's variance that comes from pairs of fields, from 0 up to, but without, 1.
        fields: number of fields, 1 or more.
        categories: of each field, 2 or more.
        skew: a field's r-th category is drawn with a frequency proportional to `r ** -skew`; 0 or more.
        users: adds a field "user" of so many values, which acts like any other, for metrics within groups.
        seed: of everything. Other numbers of rows leave the tasks' effects, and the other parts, as they are.

    Raises:
        UserError: for an argument out of range, or fields with too few categories for so many tasks' effects.

    Example:
        >>> data = synthetic(1000, test_rows=500, base_rates={"dense": 0.4})
        >>> data.train.num_rows, list(data.tasks), sorted(data.oracle_auc)
        (1000, ['sparse', 'dense'], ['dense', 'sparse'])
        >>> x, y = data.arrays("train")
        >>> x["field_0"].shape, int(np.isfinite(y["sparse"]).sum()), int(np.isfinite(y["dense"]).sum())
        ((1000,), 25, 1000)
    """
    counts = {"rows": rows, "validation_rows": validation_rows, "test_rows": test_rows, "fields": fields}
    check_counts({**counts, "categories": categories, "users": users, "seed": seed})
    shares = shares_by_task(labelled_share)
    rates = rates_by_task(base_rates, list(shares))
    tasks = list(shares)
    check_numbers(len(tasks), correlation=correlation, noise=noise, interaction=interaction, skew=skew)
    columns = {**({} if users is None else {USER: users}), **{f"field_{i}": categories for i in range(fields)}}
    check_room(list(columns.values()), len(tasks), interaction)

    logits = TaskLogits(list(columns.values()), len(tasks), correlation, interaction, skew, _random(seed, 0))
    reference = logits(logits.draw(_REFERENCE_ROWS, _random(seed, 1)))
    intercepts = np.array([_intercept(z, rate, noise) for z, rate in zip(reference.T, rates, strict=True)])
    tables, probabilities = {}, {}
    oracle: dict[str, float | None] = {}
    for number, (part, count) in enumerate(zip(PARTS, (rows, validation_rows, test_rows), strict=True)):
        random = _random(seed, 2 + number)
        ids = logits.draw(count, random)
        z = (logits(ids) + intercepts) / noise
        probability = _sigmoid(z)
        positive = random.random_sample(z.shape) < probability
        labelled = np.ones(z.shape, bool)
        if part == "train":
            labelled = np.stack([_chosen(count, s, _random(seed, 5 + t)) for t, s in enumerate(shares.values())], 1)
        tables[part] = _table(columns, ids, tasks, positive, labelled)
        probabilities[part] = dict(zip(tasks, probability.T, strict=True))
        if part == "test":
            oracle = {task: _auc(positive[:, t], z[:, t]) for t, task in enumerate(tasks)}
    schema = Schema({task: TaskSpec(f"{task}_label") for task in tasks}, categorical={column: {} for column in columns})
    return Synthetic(
        **tables,
        schema=schema,
        group=None if users is None else USER,
        probabilities=probabilities,
        oracle_auc=oracle,
    )


def _random(seed: int, stream: int) -> np.random.RandomState:
    """A stream of its own for each use; `RandomState`, since NumPy promises that what it draws never changes."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed, spawn_key=(stream,))))


def _intercept(z: np.ndarray, rate: float, noise: float) -> float:
    """Return b with `mean(sigmoid((z + b) / noise)) = rate`: Newton's steps, kept inside an interval that holds it."""
    b = middle = noise * np.log(rate / (1.0 - rate))
    low, high = middle - z.max(), middle - z.min()
    for _ in range(_MOST_STEPS):
        p = _sigmoid((z + b) / noise)
        excess, slope = p.mean() - rate, (p * (1.0 - p)).mean() / noise
        low, high = (low, b) if excess > 0 else (b, high)
        step = b - excess / slope if slope > 0 else np.inf
        new = step if low < step < high else (low + high) / 2.0
        if abs(new - b) < 1e-12:
            break
        b = new
    return float(b)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _chosen(rows: int, share: float, random: np.random.RandomState) -> np.ndarray:
    """Booleans (rows,), `round(share · rows)` of them True, at least one."""
    chosen = np.zeros(rows, bool)
    chosen[random.permutation(rows)[: max(round(share * rows), 1)]] = True
    return chosen


def _table(
    columns: Mapping[str, int], ids: np.ndarray, tasks: list[str], positive: np.ndarray, labelled: np.ndarray
) -> pa.Table:
    made: dict[str, Any] = {}
    for number, (column, size) in enumerate(columns.items()):
        values = pa.array([f"{column[0]}{i}" for i in range(size)])
        made[column] = pa.DictionaryArray.from_arrays(pa.array(np.ascontiguousarray(ids[:, number])), values)
    for number, task in enumerate(tasks):
        made[f"{task}_label"] = pa.array(positive[:, number].astype("int8"), mask=~labelled[:, number])
    return pa.table(made)


def _auc(positive: np.ndarray, z: np.ndarray) -> float | None:
    """Of the logit, which ranks as the probability does, without ties where that rounds to 1."""
    if positive.all() or not positive.any():
        return None
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, z))
