"""Counts that arrive in parts: exact while there are few, within a known error of a rank beyond."""

import math

import numpy as np
import pyarrow as pa
import pytest

from gradalign.data.counting import NumberCounts, ValueCounts
from gradalign.data.learning import edges_of_counts, most_frequent, quantile_edges, standardisation, vocabulary


@pytest.fixture
def rng():
    """Return numbers of each test's own, whichever ran before it."""
    return np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_values_are_counted_exactly(size, rng):
    words = rng.choice([f"w{i}" for i in range(50)], 1000).tolist() + [None] * 5
    counts = ValueCounts()
    for first in range(0, len(words), size):
        counts.add(pa.array(words[first : first + size], pa.large_string()))
    assert most_frequent(counts.table(), 2, 20) == vocabulary(pa.array(words, pa.large_string()), 2, 20)


def test_few_numbers_are_counted_exactly(rng):
    numbers = np.round(rng.normal(size=3000), 1)
    counts = NumberCounts()
    for part in np.array_split(numbers, 13):
        counts.add(part)
    counts.add(np.empty(0))
    assert counts.error == 0
    for found, wanted in zip(counts.distinct_and_counts(), np.unique(numbers, return_counts=True), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert edges_of_counts(*counts.distinct_and_counts(), 16) == quantile_edges(numbers, 16)


def test_mean_and_range(rng):
    numbers = rng.normal(1e6, 1.0, 5000)
    counts = NumberCounts()
    assert counts.standardisation() is None
    for part in np.array_split(numbers, 7):
        counts.add(part)
    # The mean is a million scales away, and rounding of the numbers themselves weighs that much more in the scale.
    assert counts.standardisation() == pytest.approx(standardisation(numbers), rel=1e-9)
    constant = NumberCounts()
    constant.add(np.array([5.0, 5.0]))
    assert constant.standardisation() == {"mean": 5.0, "scale": 1.0, "low": 5.0, "high": 5.0}


ORDERS = {"sorted": np.sort, "reversed": lambda a: np.sort(a)[::-1], "shuffled": lambda a: a}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("part", [100, 700])
def test_the_rank_of_a_cut_is_within_the_error_that_is_told(order, part, rng):
    exact, rows = 256, 8_000
    heavy = np.repeat([0.25, -0.5], [1600, 400])
    numbers = ORDERS[order](rng.permutation(np.concatenate([rng.normal(size=rows - len(heavy)), heavy])))
    counts = NumberCounts(exact)
    for first in range(0, rows, part):
        counts.add(numbers[first : first + part])
    distinct, counted = counts.distinct_and_counts()
    assert counted.sum() == rows == counts.rows
    assert len(distinct) <= exact * (2 + math.log2(rows / exact))  # what is held does not grow with the rows
    assert 0 < counts.error <= 16 * (2 + math.log2(rows / exact)) / exact * rows
    right_of = np.cumsum(counted)
    for cut in range(len(distinct) - 1):
        for edge in (distinct[cut], (distinct[cut] + distinct[cut + 1]) / 2):
            assert abs(np.sum(numbers <= edge) - right_of[cut]) <= counts.error
    # What fills a share by itself is still one number with its own count.
    assert abs(int(counted[distinct == 0.25].sum()) - 1600) <= counts.error
