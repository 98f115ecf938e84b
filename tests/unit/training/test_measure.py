"""Metrics against their definitions, and what does not exist is None."""

from __future__ import annotations

import numpy as np
import pytest

from gradalign.training.measure import measure, suspicions


def _auc_by_definition(y, p):
    pairs = [(1.0 if a > b else 0.5 if a == b else 0.0) for a in p[y == 1] for b in p[y == 0]]
    return float(np.mean(pairs))


def test_auc_counts_pairs_of_labelled_rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200).astype("float32")
    p = np.round(rng.random(200), 1).astype("float32")  # with ties
    y[::3] = np.nan
    found = measure({"t": y}, {"t": p[:, None]})["t"]
    kept = ~np.isnan(y)
    assert found["auc"] == pytest.approx(_auc_by_definition(y[kept], p[kept]), abs=1e-12)
    assert (found["rows"], found["positives"]) == (kept.sum(), np.nansum(y))
    epsilon = np.finfo("float64").eps  # scikit-learn's floor of a probability
    q = np.clip(p[kept].astype("float64"), epsilon, 1 - epsilon)
    expected = -np.mean(np.where(y[kept] == 1, np.log(q), np.log(1 - q)))
    assert found["log_loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_no_auc(label):
    found = measure({"t": np.full(3, label)}, {"t": np.array([0.2, 0.5, 0.5])})["t"]
    assert found["auc"] is None and found["log_loss"] > 0 and found["positives"] == 3 * label


def test_no_label_has_neither():
    assert measure({"t": np.full(2, np.nan)}, {"t": np.array([0.2, 0.5])})["t"] == {
        "auc": None,
        "log_loss": None,
        "rows": 0,
        "positives": 0,
    }


def test_results_that_look_like_faults_are_said():
    def task(auc):
        return {"auc": auc, "log_loss": 0.1, "rows": 9, "positives": 3}

    said = suspicions({"a": task(0.9995), "b": task(0.5), "c": task(0.8), "d": task(0.8), "e": task(None)})
    assert len(said) == 3
    assert '"a"' in said[0] and "0.99950" in said[0]
    assert '"b"' in said[1] and "exactly 0.5" in said[1]
    assert '"c" and "d"' in said[2]
    assert suspicions({"a": task(0.99), "b": task(0.51)}) == []
