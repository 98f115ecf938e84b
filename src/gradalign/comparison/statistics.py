"""What seeds say: spread, paired differences with their interval, and p corrected for the number of comparisons."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

__all__ = ["CONFIDENCE", "PairedDifference", "holm", "mean_and_sd", "paired_difference"]

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """A method beside the baseline, over the seeds that have a value of both.

    Args:
        mean: of the differences, method less baseline.
        low, high: the 95 % interval of their mean, by Student's t; None with one seed.
        p: two-sided, of no difference; None with one seed.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None


def mean_and_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample's standard deviation, None of one value.

    >>> mean_and_sd([1.0, 2.0, 3.0]), mean_and_sd([1.0])
    ((2.0, 1.0), (1.0, None))
    """
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> PairedDifference | None:
    """Compare by SciPy's paired t-test, seed by seed; None where no seed has both.

    Where every seed differs by the very same amount there is nothing to estimate: the interval is that amount, and p is
    1 for no difference and 0 for any other.

    Args:
        values: {seed: value} of a method.
        baseline: the same of what it is compared with.

    Example:
        >>> found = paired_difference({0: 0.72, 1: 0.75, 2: 0.74}, {0: 0.70, 1: 0.74, 2: 0.71})
        >>> f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f}), p {found.p:.3f}"
        '0.020 (-0.005 to 0.045), p 0.074'
        >>> paired_difference({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6})
        PairedDifference(mean=0.0, low=0.0, high=0.0, p=1.0)
    """
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        return None
    of_method, of_baseline = (np.array([found[seed] for seed in seeds]) for found in (values, baseline))
    differences = of_method - of_baseline
    mean = float(differences.mean())
    if len(seeds) == 1:
        return PairedDifference(mean, None, None, None)
    if np.all(differences == differences[0]):
        same = float(differences[0])
        return PairedDifference(same, same, same, 1.0 if same == 0.0 else 0.0)
    tested = stats.ttest_rel(of_method, of_baseline)
    interval = tested.confidence_interval(CONFIDENCE)
    return PairedDifference(mean, float(interval.low), float(interval.high), float(tested.pvalue))


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's corrected p of a family of tests (Holm 1979, Scandinavian Journal of Statistics 6:65).

    The i-th smallest of m is multiplied by `m + 1 - i`, is no smaller than the one before it, and at most 1. Whoever
    calls a difference real where its corrected p is below 0.05 errs in one family out of twenty at most.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = least
    return corrected
