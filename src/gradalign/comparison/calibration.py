"""Whether predicted probabilities are as large as what happened: overall, and by decile of the prediction."""

from __future__ import annotations

import dataclasses

import numpy as np
from sklearn.calibration import calibration_curve

__all__ = ["Calibration", "calibration"]

DECILES = 10


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How predictions compare with what was observed.

    Args:
        ratio: sum of the predictions over the number of positives, 1 where they agree; None without a positive.
        error: mean over the deciles of |mean prediction - share of positives|; 0 where they agree.
        deciles: (mean prediction, share of positives) of each tenth of the rows, by rising prediction; fewer where many
            rows have one prediction.
    """

    ratio: float | None
    error: float
    deciles: tuple[tuple[float, float], ...]


def calibration(labels: np.ndarray, predictions: np.ndarray) -> Calibration | None:
    """Compare probabilities with labels; the deciles are those of scikit-learn's `calibration_curve`.

    Args:
        labels: (rows,), 0 and 1.
        predictions: (rows,), probabilities.

    Returns:
        None without any row.

    Example:
        >>> found = calibration(np.array([0, 1, 0, 1]), np.array([0.1, 0.3, 0.6, 0.8]))
        >>> f"{found.ratio:.2f}", found.deciles[0], f"{found.error:.2f}"
        ('0.90', (0.1, 0.0), '0.40')
    """
    if not len(labels):
        return None
    observed, predicted = calibration_curve(labels, predictions, pos_label=1, n_bins=DECILES, strategy="quantile")
    deciles = tuple((float(p), float(o)) for p, o in zip(predicted, observed, strict=True))
    positives = float(labels.sum())
    ratio = float(predictions.sum()) / positives if positives else None
    return Calibration(ratio, float(np.abs(predicted - observed).mean()), deciles)
