"""How well rows are ranked within each group, such as a user: GAUC and NDCG@k."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import ndcg_score

__all__ = ["CUT", "gauc", "mean_ndcg"]

CUT = 10  # rows at the top of each group that NDCG looks at


def gauc(labels: np.ndarray, scores: np.ndarray, groups: np.ndarray) -> float | None:
    """Return the mean of the groups' AUCs, each weighted by its rows: GAUC (Zhu et al., KDD 2017), by impressions.

    A group without a positive, or without a negative, has no AUC and takes no part. Equal scores count half, as in the
    exact AUC.

    Args:
        labels: (rows,), 0 and 1.
        scores: (rows,), higher for more likely.
        groups: (rows,), whole numbers; a negative one is of no group, and its rows take no part.

    Returns:
        The weighted mean; None where no group has both classes.

    Example:
        >>> labels, scores = np.array([1, 0, 0, 1, 0]), np.array([0.9, 0.1, 0.5, 0.2, 0.3])
        >>> gauc(labels, scores, np.array([0, 0, 0, 1, 1]))  # AUC 1 on three rows, 0 on two
        0.6
    """
    labels, scores, groups = _both_classes(labels, scores, groups)
    if not len(labels):
        return None
    # The AUC of a group from the ranks of its positives, for all groups at once; rows of equal score share their rank.
    order = np.lexsort((scores, groups))
    labels, scores, groups = labels[order], scores[order], groups[order]
    is_new = np.append(True, (np.diff(groups) != 0) | (np.diff(scores) != 0))
    ties = np.cumsum(is_new) - 1
    firsts = np.flatnonzero(is_new)
    lasts = np.append(firsts[1:], len(labels)) - 1
    size, positives = np.bincount(groups), np.bincount(groups, labels)
    before = np.cumsum(size) - size  # rows of the groups in front
    ranks = ((firsts + lasts) / 2 + 1)[ties] - before[groups]
    won = np.bincount(groups, ranks * labels) - positives * (positives + 1) / 2
    return float(np.average(won / (positives * (size - positives)), weights=size))


def mean_ndcg(labels: np.ndarray, scores: np.ndarray, groups: np.ndarray, k: int = CUT) -> float | None:
    """Return the mean of the groups' NDCG@k by scikit-learn, over the groups with a positive and a negative row.

    Arguments and None as in `gauc`; a positive row gains 1, and rows of equal score their mean.

    Example:
        >>> labels, scores = np.array([1, 0, 0, 1]), np.array([0.9, 0.1, 0.3, 0.2])
        >>> round(mean_ndcg(labels, scores, np.array([0, 0, 1, 1])), 4)  # 1, and 1 / log2(3)
        0.8155
    """
    labels, scores, groups = _both_classes(labels, scores, groups)
    if not len(labels):
        return None
    order = np.argsort(groups, kind="stable")
    labels, scores = labels[order], scores[order]
    size = np.bincount(groups)
    firsts, total = np.cumsum(size) - size, 0.0
    for rows in np.unique(size):  # groups of equal size make a matrix
        at = firsts[size == rows][:, None] + np.arange(rows)
        total += float(ndcg_score(labels[at], scores[at], k=k)) * len(at)
    return total / len(size)


def _both_classes(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of the groups that have both classes; these groups are numbered anew from 0."""
    known = groups >= 0
    labels, scores, groups = labels[known].astype(np.int64), scores[known], groups[known]
    size, positives = np.bincount(groups), np.bincount(groups, labels)
    kept = ((positives > 0) & (positives < size))[groups]
    return labels[kept], scores[kept], np.unique(groups[kept], return_inverse=True)[1]
