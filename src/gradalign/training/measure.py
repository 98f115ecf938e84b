"""Exact metrics of scores against labels, over the rows that have the label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score


class TaskMetrics(TypedDict):
    """What is said of one task; `auc` and `log_loss` are None where they do not exist."""

    auc: float | None
    log_loss: float | None
    rows: int
    positives: int


def measure(labels: Mapping[str, np.ndarray], scores: Mapping[str, np.ndarray]) -> dict[str, TaskMetrics]:
    """Return the metrics of every task.

    Args:
        labels: {task: (rows,)}: 1 positive, 0 negative, NaN no label.
        scores: {task: (rows,) or (rows, 1)}: probabilities of the positive.

    Returns:
        {task: {"auc", "log_loss", "rows", "positives"}}: AUC by the exact rank statistic, None where the labelled rows
        are all of one class; log loss in nats per labelled row, None without any; counts of labelled rows.

    >>> nan = float("nan")
    >>> measure({"buy": np.array([1, 0, nan, 1])}, {"buy": np.array([0.9, 0.2, 0.5, 0.8])})["buy"]
    {'auc': 1.0, 'log_loss': 0.183..., 'rows': 3, 'positives': 2}
    >>> measure({"buy": np.array([1.0])}, {"buy": np.array([0.5])})["buy"]["auc"] is None
    True
    """
    found: dict[str, TaskMetrics] = {}
    for task, label in labels.items():
        labelled = ~np.isnan(label)
        y = label[labelled].astype(np.int64)
        p = np.asarray(scores[task], np.float64).reshape(-1)[labelled]
        positives = int(y.sum())
        found[task] = {
            "auc": float(roc_auc_score(y, p)) if 0 < positives < len(y) else None,
            "log_loss": float(log_loss(y, p, labels=[0, 1])) if len(y) else None,
            "rows": len(y),
            "positives": positives,
        }
    return found


def suspicions(metrics: Mapping[str, TaskMetrics]) -> list[str]:
    """Return a sentence for each result that is more likely a fault than a finding.

    >>> suspicions({"buy": {"auc": 1.0, "log_loss": 0.1, "rows": 9, "positives": 3}})
    ['Task "buy" has an AUC of 1.00000: look for an input that gives its label away.']
    """
    said, seen = [], dict[float, str]()
    for task, found in metrics.items():
        auc = found["auc"]
        if auc is None:
            continue
        if auc > 0.999:
            said.append(f'Task "{task}" has an AUC of {auc:.5f}: look for an input that gives its label away.')
        if auc == 0.5:
            said.append(f'Task "{task}" has an AUC of exactly 0.5: it gives every row the same score.')
        elif auc in seen:
            said.append(f'Tasks "{seen[auc]}" and "{task}" have the very same AUC: see whether they share one label.')
        seen[auc] = task
    return said
