"""Paired differences against SciPy and by hand, Holm's correction by hand, and rows of a comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gradalign.comparison.results import Result, compared
from gradalign.comparison.statistics import PairedDifference, holm, mean_and_sd, paired_difference


def test_a_paired_difference_is_scipys():
    draw = np.random.default_rng(0)
    one, other = draw.normal(0.7, 0.01, 6), draw.normal(0.69, 0.01, 6)
    found = paired_difference(dict(enumerate(one)), dict(enumerate(other)))
    tested = stats.ttest_rel(one, other)
    assert found.p == pytest.approx(tested.pvalue, abs=1e-15)
    # mean ± t · sd / sqrt(n), written out
    d = one - other
    half = stats.t.ppf(0.975, 5) * math.sqrt(((d - d.mean()) ** 2).sum() / 5) / math.sqrt(6)
    assert (found.mean, found.low, found.high) == pytest.approx((d.mean(), d.mean() - half, d.mean() + half), abs=1e-15)


def test_a_difference_by_hand():
    """Differences 1, 2, 3: mean 2, sd 1, t = 2 sqrt(3) at 2 degrees of freedom, whose p is 1 - t / sqrt(t² + 2)."""
    found = paired_difference({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert found.mean == 2.0
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - t / math.sqrt(t * t + 2), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-6
    )


def test_pairs_are_made_by_seed():
    both = paired_difference({2: 0.75, 0: 0.70, 5: 9.0}, {0: 0.69, 2: 0.73, 7: -9.0})
    assert both.mean == pytest.approx(0.015)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_a_method_beside_itself_does_not_differ():
    same = {seed: 0.1 * seed for seed in range(4)}
    assert paired_difference(same, same) == PairedDifference(0.0, 0.0, 0.0, 1.0)


def test_one_seed_has_no_interval():
    assert paired_difference({0: 0.75}, {0: 0.5}) == PairedDifference(0.25, None, None, None)
    assert mean_and_sd([0.75]) == (0.75, None)


def test_the_very_same_difference_in_every_seed_is_certain():
    assert paired_difference({0: 1.5, 1: 2.5}, {0: 1.0, 1: 2.0}) == PairedDifference(0.5, 0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("p", "corrected"),
    [
        ([0.04, 0.01, 0.03, 0.02], [0.06, 0.04, 0.06, 0.06]),  # × 1, 4, 2, 3, then never below a smaller one's
        ([0.6, 0.5], [1.0, 1.0]),
        ([0.001], [0.001]),
        ([], []),
    ],
)
def test_holm_by_hand(p, corrected):
    assert holm(p) == pytest.approx(corrected)


def _results(method, task, metric, values):
    return [Result(method, seed, task, metric, value) for seed, value in enumerate(values)]


def test_rows_have_differences_to_the_plain_sum_corrected_within_a_metric():
    draw = np.random.default_rng(1)
    values = {(m, t): draw.normal(size=4) for m in ("none", "a", "b") for t in ("buy", "like")}
    results = [r for (m, t), v in values.items() for r in _results(m, t, "auc", v)]
    results += _results("none", "", "seconds", [1.0, 2.0, 3.0, 4.0]) + _results(
        "a", "", "seconds", [2.0, 2.0, 5.0, 4.0]
    )
    rows = {(row.method, row.task, row.metric): row for row in compared(results)}
    assert len(rows) == 8 and list(rows)[-1] == ("a", "", "seconds")
    plain = rows["none", "buy", "auc"]
    assert (plain.seeds, plain.mean) == (4, pytest.approx(values["none", "buy"].mean()))
    assert plain.sd == pytest.approx(values["none", "buy"].std(ddof=1))
    assert (plain.difference, plain.low, plain.high, plain.p, plain.p_corrected) == (None,) * 5
    family = [(m, t) for t in ("buy", "like") for m in ("a", "b")]
    p = [stats.ttest_rel(values[m, t], values["none", t]).pvalue for m, t in family]
    assert [rows[m, t, "auc"].p for m, t in family] == pytest.approx(p)
    assert [rows[m, t, "auc"].p_corrected for m, t in family] == pytest.approx(holm(p))
    seconds = rows["a", "", "seconds"]
    assert seconds.p_corrected == seconds.p  # the only one of its metric


def test_what_no_seed_has_is_left_out_and_what_some_have_counts_them():
    results = _results("none", "buy", "auc", [0.5, None, 0.7]) + _results("a", "buy", "auc", [0.6, 0.9, None])
    results += _results("none", "", "probe_accuracy", [None] * 3)
    none, a = compared(results)
    assert (none.seeds, a.seeds, a.difference, a.low) == (2, 2, pytest.approx(0.1), None)
