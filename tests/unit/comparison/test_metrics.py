"""GAUC, NDCG@k and calibration: by hand, and against scikit-learn group by group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from gradalign.comparison.calibration import calibration
from gradalign.comparison.ranking import gauc, mean_ndcg


@pytest.fixture
def ranked():
    """Groups of many sizes, scores with ties, and rows of no group."""
    draw = np.random.default_rng(0)
    groups = np.minimum(draw.geometric(0.15, 400), 20) - 2  # -1: no group
    return draw.integers(0, 2, 400), draw.integers(0, 6, 400) / 5, groups


def _by_group(labels, groups):
    of = [np.flatnonzero(groups == g) for g in np.unique(groups[groups >= 0])]
    return [rows for rows in of if 0 < labels[rows].sum() < len(rows)]


def test_gauc_is_the_mean_of_exact_aucs_weighted_by_rows(ranked):
    labels, scores, groups = ranked
    kept = _by_group(labels, groups)
    aucs = [roc_auc_score(labels[rows], scores[rows]) for rows in kept]
    assert gauc(labels, scores, groups) == pytest.approx(np.average(aucs, weights=[len(rows) for rows in kept]))


def test_ndcg_is_scikit_learns_mean_over_groups(ranked):
    labels, scores, groups = ranked
    kept = _by_group(labels, groups)
    for k in (3, 10):
        each = [ndcg_score([labels[rows]], [scores[rows]], k=k) for rows in kept]
        assert mean_ndcg(labels, scores, groups, k) == pytest.approx(np.mean(each))


def test_ndcg_by_hand():
    """Positives at places 2 and 3 of three: (1/log2 3 + 1/2) / (1 + 1/log2 3); cut at 2, the second one is lost."""
    labels, scores, groups = np.array([0, 1, 1]), np.array([0.9, 0.5, 0.1]), np.array([7, 7, 7])
    second = 1 / math.log2(3)
    assert mean_ndcg(labels, scores, groups) == pytest.approx((second + 0.5) / (1 + second))
    assert mean_ndcg(labels, scores, groups, k=2) == pytest.approx(second / (1 + second))


def test_groups_of_one_class_and_rows_of_no_group_take_no_part():
    labels, scores = np.array([1, 1, 0, 0, 1, 0]), np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.8])
    groups = np.array([0, 0, 1, 1, -1, -1])
    assert gauc(labels, scores, groups) is None and mean_ndcg(labels, scores, groups) is None
    assert gauc(labels, scores, np.array([0, 0, 1, 1, 2, 2])) == 1.0


def test_calibration_by_hand():
    """Twenty rows in ten pairs; the pair at 0.1 i + 0.05 has i / 10 positives, up to rounding to 0, 1 or 2."""
    predictions = np.repeat(np.arange(10) / 10 + 0.05, 2)
    labels = np.array([0, 0] * 5 + [1, 0] * 2 + [1, 1] * 3)
    found = calibration(labels, predictions)
    observed = [0.0] * 5 + [0.5] * 2 + [1.0] * 3
    assert found.ratio == pytest.approx(predictions.sum() / 8)
    assert [o for _, o in found.deciles] == observed
    assert [p for p, _ in found.deciles] == pytest.approx(list(np.arange(10) / 10 + 0.05))
    assert found.error == pytest.approx(np.mean([abs(p - o) for p, o in zip(predictions[::2], observed, strict=True)]))


def test_calibration_of_one_class_or_one_prediction_or_nothing():
    assert calibration(np.zeros(4, int), np.full(4, 0.25)).ratio is None
    one = calibration(np.array([1, 0, 0, 0]), np.full(4, 0.25))
    assert (one.ratio, one.error, one.deciles) == (1.0, 0.0, ((0.25, 0.25),))
    assert calibration(np.array([], int), np.array([])) is None
