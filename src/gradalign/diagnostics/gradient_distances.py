"""How far apart two tasks' gradients lie, as distributions."""

from __future__ import annotations

import numpy as np

__all__ = ["median_distance", "sliced_wasserstein", "squared_mmd"]


def squared_mmd(
    x: np.ndarray,
    y: np.ndarray,
    *,
    x_rows: np.ndarray | None = None,
    y_rows: np.ndarray | None = None,
    bandwidth: float | None = None,
) -> float:
    """Return the unbiased estimate of the squared maximum mean discrepancy, Gaussian kernel.

    Gretton et al., "A Kernel Two-Sample Test", JMLR 2012, Lemma 6, eq. 3: with `k(a, b) = exp(-|a - b|² / (2 σ²))`, the
    mean of `k` over pairs within `x`, plus that within `y`, minus twice that across. It is 0 in expectation where both
    come from one distribution, and may be below 0.

    Args:
        x: (n, D), n of 2 or more.
        y: (m, D).
        x_rows: (n,), the row of the data that each of `x` comes from, and `y_rows` (m,) that of `y`. Two gradients of
            one row depend on each other, so pairs across with equal rows are left out, as eq. 4 of the paper does for
            paired samples. By default there are none.
        y_rows: see `x_rows`.
        bandwidth: σ; by default `median_distance`.

    Example:
        >>> x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])
        >>> round(squared_mmd(x, y, bandwidth=1.0), 4)  # e^-1/2 + e^-2 - (1 + e^-2 + 2 e^-1/2) / 2
        -0.4323
    """
    sigma = median_distance(np.concatenate([x, y])) if bandwidth is None else bandwidth
    if sigma == 0.0:  # more than half of all distances are 0; any σ tells those apart that are not
        sigma = 1.0

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(_squared_distances(a, b) / (-2.0 * sigma**2))

    def within(a: np.ndarray) -> float:
        values = kernel(a, a)
        return float((values.sum() - np.trace(values)) / (len(a) * (len(a) - 1)))

    across = kernel(x, y)
    if x_rows is None or y_rows is None:
        mean = float(across.mean())
    else:
        apart = x_rows[:, None] != y_rows[None, :]
        mean = float(across[apart].mean())
    return within(x) + within(y) - 2.0 * mean


def median_distance(points: np.ndarray) -> float:
    """Return the median of the distances between different points, the usual σ (Gretton et al., section 8).

    >>> median_distance(np.array([[0.0], [1.0], [3.0]]))
    2.0
    """
    distances = _squared_distances(points, points)[np.triu_indices(len(points), 1)]
    return float(np.sqrt(np.median(distances)))


def sliced_wasserstein(x: np.ndarray, y: np.ndarray, random: np.random.RandomState, projections: int = 128) -> float:
    """Return the sliced 1-Wasserstein distance: the mean over random directions of that between the projections.

    Bonneel et al., "Sliced and Radon Wasserstein Barycenters of Measures", JMIV 2015, section 2.3, with p = 1. For one
    direction it is the area between the two quantile functions, exact for samples of any two sizes. Never below 0, and
    above it for two samples of one distribution: compare with what shuffled samples give.

    Args:
        x: (n, D).
        y: (m, D).
        random: draws the directions, uniform on the sphere.
        projections: number of directions.

    Example:
        >>> x = np.array([[0.0], [1.0], [3.0]])
        >>> sliced_wasserstein(x, x + 0.5, np.random.RandomState(0))
        0.5
    """
    directions = random.standard_normal((x.shape[1], projections))
    directions /= np.linalg.norm(directions, axis=0)
    first, second = np.sort(x @ directions, axis=0), np.sort(y @ directions, axis=0)
    n, m = len(first), len(second)
    # Both quantile functions are steps: i/n and j/m in whole numbers, so that equal ends are equal.
    ends = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    widths = np.diff(ends, prepend=0) / (n * m)
    gaps = np.abs(first[(ends - 1) // m] - second[(ends - 1) // n])
    return float((widths @ gaps).mean())


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    products = np.square(a).sum(1)[:, None] + np.square(b).sum(1)[None, :] - 2.0 * (a @ b.T)
    return np.maximum(products, 0.0)
