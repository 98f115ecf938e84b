"""Logits of synthetic tasks whose variances and correlations are exact, not sample figures.

Fields are independent, and a row is one category of each. With `u` and `v_1 ... v_T` functions of the row that have
mean 0 and variance 1 and are uncorrelated over all rows that can be drawn, and `c` the correlation,

    z_t = sign_t · sqrt(|c|) · u  +  sqrt(1 - |c|) · v_t

has variance 1, and `corr(z_s, z_t) = c` for every pair. Each of `u`, `v_t` is

    sqrt(1 - i) · sum_f w_f[x_f]  +  sqrt(i) · sum_{f<g} <a_f[x_f], a_g[x_g]>

with random tables `w` (one number a category) and `a` (vectors, as in a factorisation machine) whose mean over the
categories of each field is 0. The two sums are then uncorrelated, and the covariances of either among the effects are
sums over categories, so Cholesky's factor of them makes the effects uncorrelated exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["TaskLogits", "frequencies"]

_RANK = 2  # entries of a category's vector in the pairs of fields


def frequencies(size: int, skew: float) -> np.ndarray:
    """Return the categories' frequencies, proportional to `rank ** -skew`, float64 (size,).

    >>> frequencies(3, 1.0)
    array([0.545, 0.273, 0.182])
    """
    weights: np.ndarray = np.arange(1, size + 1, dtype=np.float64) ** -skew
    return np.asarray(weights / weights.sum())


class TaskLogits:
    """The tasks' noiseless logits as functions of a row's categories, and the rows' distribution.

    Args:
        sizes: categories of each field, 2 or more each; their effects have room for `tasks + 1` directions.
        tasks: how many.
        correlation: of any two tasks' logits; below 0 for two tasks only.
        interaction: share of the variance that comes from pairs of fields.
        skew: of the frequencies, see `frequencies`.
        random: draws the tables.

    Example:
        >>> logits = TaskLogits([4, 4, 4], 2, 0.5, 0.3, 1.0, np.random.RandomState(0))
        >>> logits(logits.draw(5, np.random.RandomState(1))).shape
        (5, 2)
    """

    def __init__(
        self,
        sizes: Sequence[int],
        tasks: int,
        correlation: float,
        interaction: float,
        skew: float,
        random: np.random.RandomState,
    ) -> None:
        self.frequencies = [frequencies(size, skew) for size in sizes]
        effects = tasks + 1
        signs = np.where(np.arange(tasks) == 0, 1.0, np.sign(correlation) or 1.0)
        mixed = np.hstack(
            [signs[:, None] * np.sqrt(abs(correlation)), np.sqrt(1.0 - abs(correlation)) * np.eye(tasks)]
        )  # (tasks, effects)
        singles = [_centred(random.standard_normal((f.size, effects)), f) for f in self.frequencies]
        covariance = sum((f[:, None] * w).T @ w for f, w in zip(self.frequencies, singles, strict=True))
        mix = np.sqrt(1.0 - interaction) * mixed @ np.linalg.inv(np.linalg.cholesky(covariance))
        self._singles = [w @ mix.T for w in singles]  # (size, tasks) each
        self._pairs: list[np.ndarray] = []  # (size, effects, rank) each
        if interaction > 0:
            pairs = [_centred(random.standard_normal((f.size, effects, _RANK)), f) for f in self.frequencies]
            self._pairs = pairs
            moments = np.stack(
                [np.einsum("c,cki,clj->klij", f, a, a) for f, a in zip(self.frequencies, pairs, strict=True)]
            )
            # <C_f, C_g> summed over pairs f < g is half of what the square of the sum has beyond the squares.
            covariance = (np.square(moments.sum(0)) - np.square(moments).sum(0)).sum((-2, -1)) / 2.0
            self._mix_pairs = np.sqrt(interaction) * mixed @ np.linalg.inv(np.linalg.cholesky(covariance))

    def draw(self, rows: int, random: np.random.RandomState) -> np.ndarray:
        """Return categories, int32 (rows, fields), numbered from the most frequent one."""
        ids = np.empty((rows, len(self.frequencies)), np.int32)
        for field, of_field in enumerate(self.frequencies):
            edges = np.cumsum(of_field)[:-1]
            ids[:, field] = np.searchsorted(edges, random.random_sample(rows), side="right")
        return ids

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return the logits of rows of categories (rows, fields), float64 (rows, tasks); without an intercept."""
        found: np.ndarray = np.add.reduce([table[ids[:, field]] for field, table in enumerate(self._singles)])
        if self._pairs:
            shape = (len(ids), *self._pairs[0].shape[1:])
            total, squares = np.zeros(shape), np.zeros(shape)
            for field, table in enumerate(self._pairs):
                rows = table[ids[:, field]]
                total += rows
                squares += np.square(rows, out=rows)
            pairs = (np.square(total, out=total) - squares).sum(-1) / 2.0
            found += pairs @ self._mix_pairs.T
        return found


def _centred(table: np.ndarray, of_field: np.ndarray) -> np.ndarray:
    return np.asarray(table - np.tensordot(of_field, table, axes=1))
