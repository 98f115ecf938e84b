"""MMD and sliced Wasserstein against closed forms, direct sums and SciPy."""

from __future__ import annotations

import itertools
from math import exp, gamma, pi, sqrt

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import wasserstein_distance

from gradalign.diagnostics.gradient_distances import median_distance, sliced_wasserstein, squared_mmd


def kernel(a, b, sigma):
    return exp(-sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / (2 * sigma**2))


def test_mmd_is_the_sum_over_pairs_and_leaves_out_those_of_one_row():
    draw = np.random.default_rng(0)
    x, y, sigma = draw.normal(size=(4, 3)), draw.normal(size=(5, 3)), 1.3
    x_rows, y_rows = np.array([0, 1, 2, 3]), np.array([3, 1, 7, 8, 9])

    def mean(pairs):
        values = [kernel(a, b, sigma) for a, b in pairs]
        return sum(values) / len(values)

    within = mean(itertools.permutations(x, 2)) + mean(itertools.permutations(y, 2))
    across = mean(itertools.product(x, y))
    apart = mean((x[i], y[j]) for i in range(4) for j in range(5) if x_rows[i] != y_rows[j])
    assert squared_mmd(x, y, bandwidth=sigma) == pytest.approx(within - 2 * across, abs=1e-12)
    found = squared_mmd(x, y, x_rows=x_rows, y_rows=y_rows, bandwidth=sigma)
    assert found == pytest.approx(within - 2 * apart, abs=1e-12)


def test_mmd_of_two_normal_distributions_is_their_closed_form():
    """Of N(0, 1) and N(m, 1): 2 σ / sqrt(σ² + 2) · (1 - exp(-m² / (2 (σ² + 2)))); and unbiased: 0 of one."""
    draw = np.random.default_rng(1)
    sigma, found, of_one = 0.9, [], []
    for _ in range(30):
        x, y, z = draw.normal(size=(200, 1)), draw.normal(size=(150, 1)) + 0.8, draw.normal(size=(150, 1))
        found.append(squared_mmd(x, y, bandwidth=sigma))
        of_one.append(squared_mmd(x, z, bandwidth=sigma))
    wanted = 2 * sigma / sqrt(sigma**2 + 2) * (1 - exp(-(0.8**2) / (2 * (sigma**2 + 2))))
    assert np.mean(found) == pytest.approx(wanted, abs=4 * np.std(found) / sqrt(30))
    assert np.mean(of_one) == pytest.approx(0, abs=4 * np.std(of_one) / sqrt(30)) and min(of_one) < 0


def test_the_median_is_scipys_and_equal_gradients_of_the_same_rows_are_at_0():
    x = np.random.default_rng(2).normal(size=(30, 4)).astype("float32")
    assert median_distance(x) == pytest.approx(np.median(pdist(x)), rel=1e-6)
    rows = np.arange(30)
    assert squared_mmd(x, x.copy(), x_rows=rows, y_rows=rows) == pytest.approx(0, abs=1e-12)
    assert squared_mmd(x, x.copy()) < -0.01, "pairs of one row would count as alike"
    assert squared_mmd(np.zeros((5, 2)), np.zeros((5, 2))) == 0.0


@pytest.mark.parametrize(("n", "m"), [(40, 40), (30, 41), (7, 21)])
def test_sliced_wasserstein_is_scipys_along_each_direction(n, m):
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(n, 3)), draw.exponential(size=(m, 3))
    directions = np.random.RandomState(5).standard_normal((3, 16))
    directions /= np.linalg.norm(directions, axis=0)
    wanted = np.mean([wasserstein_distance(x @ d, y @ d) for d in directions.T])
    found = sliced_wasserstein(x, y, np.random.RandomState(5), projections=16)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_a_shift_moves_sliced_wasserstein_by_its_mean_projection():
    """E |<d, c>| = |c| Γ(D/2) / (sqrt(π) Γ((D+1)/2)) over directions d on the sphere."""
    x = np.random.default_rng(4).normal(size=(50, 5))
    shift = np.array([3.0, 0.0, 4.0, 0.0, 0.0])
    found = sliced_wasserstein(x, x + shift, np.random.RandomState(0), projections=20_000)
    assert found == pytest.approx(5 * gamma(2.5) / (sqrt(pi) * gamma(3)), rel=0.02)
    assert sliced_wasserstein(x, x[::-1], np.random.RandomState(0)) == pytest.approx(0, abs=1e-12)
