"""The probe's classifier: names the task of a gradient, trained with early stopping on rows of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["label_aware_chance", "named_tasks", "resampled_accuracy"]

_HIDDEN = (64, 32)
_MOST_EPOCHS, _PATIENCE = 60, 6
_LEARNING_RATE, _BATCH = 3e-3, 256


def named_tasks(gradients: np.ndarray, kept: np.ndarray, rows: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Train a classifier on some rows' gradients and return the task that it names for each gradient of others.

    A multilayer perceptron (scikit-learn): gradients of opposite labels point opposite ways, so tasks may differ in
    nothing that a linear classifier sees. Inputs are standardised. Each epoch shows as many gradients of every task,
    those of tasks with fewer rows more than once. Training ends when the cross-entropy on the rows for stopping, each
    task weighing the same, has not fallen for some epochs, and the best epoch's weights are kept.

    Args:
        gradients: (T, N, D).
        kept: booleans (T, N).
        rows: numbers of the rows to "fit" on, to "stop" by and to "test" on, none of them in two.
        seed: of weights and batches.

    Returns:
        (T, number of test rows), the number of a task.
    """
    # Loaded here: it takes a second, and most of what imports this package never probes.
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    tasks = len(gradients)
    random = np.random.RandomState(seed)
    fit, stop = ([gradients[t, r[kept[t, r]]] for t in range(tasks)] for r in (rows["fit"], rows["stop"]))
    scaler = StandardScaler().fit(np.concatenate(fit))
    fit, stop = ([scaler.transform(of_task) for of_task in part] for part in (fit, stop))
    longest = max(map(len, fit))
    labels = np.repeat(np.arange(tasks), longest)
    size = min(_BATCH, len(labels))
    classifier = MLPClassifier(_HIDDEN, learning_rate_init=_LEARNING_RATE, batch_size=size, random_state=random)
    best, weights, waited = np.inf, None, 0
    for _ in range(_MOST_EPOCHS):
        shown = [of_task[_as_many(len(of_task), longest, random)] for of_task in fit]
        classifier.partial_fit(np.concatenate(shown), labels, classes=np.arange(tasks))
        loss = np.mean([-_log_probability(classifier, of_task, t).mean() for t, of_task in enumerate(stop)])
        waited += 1
        if loss < best - 1e-4:
            best, waited = loss, 0
            weights = [w.copy() for w in (*classifier.coefs_, *classifier.intercepts_)]
        if waited == _PATIENCE:
            break
    assert weights is not None
    layers = len(weights) // 2
    classifier.coefs_, classifier.intercepts_ = weights[:layers], weights[layers:]
    return np.stack([classifier.predict(scaler.transform(of_task)) for of_task in gradients[:, rows["test"]]])


def _as_many(count: int, wanted: int, random: np.random.RandomState) -> np.ndarray:
    """All of `count` numbers as often as fits into `wanted`, and different ones for what is left."""
    return np.concatenate([np.tile(np.arange(count), wanted // count), random.permutation(count)[: wanted % count]])


def _log_probability(classifier: Any, gradients: np.ndarray, task: int) -> np.ndarray:
    return np.log(np.maximum(classifier.predict_proba(gradients)[:, task], 1e-12))


def resampled_accuracy(
    right: np.ndarray, kept: np.ndarray, confidence: float, resamples: int, random: np.random.RandomState
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the balanced accuracy, over rows.

    A row is drawn with all of its gradients, since those depend on each other.

    Args:
        right: booleans (T, N), whether the gradient's task was named.
        kept: booleans (T, N), the gradients that count.
        confidence: of the interval, such as 0.95.
        resamples: how many.
        random: draws the rows.

    Example:
        >>> right = np.array([[True, False] * 50, [False, True] * 50])  # one of each row's two, whatever is drawn
        >>> resampled_accuracy(right, np.ones_like(right), 0.95, 100, np.random.RandomState(0))
        (0.5, 0.5)
    """
    rows = right.shape[1]
    of_row = np.concatenate([right & kept, kept]).astype(np.float64).T  # (N, 2 T)
    found = []
    for _ in range(resamples):
        times = np.bincount(random.randint(rows, size=rows), minlength=rows)
        hits, counts = np.split(times @ of_row, 2)
        present = counts > 0
        found.append((hits[present] / counts[present]).mean())
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(found, [outside, 1.0 - outside])
    return float(low), float(high)


def label_aware_chance(codes: np.ndarray, kept: np.ndarray) -> float:
    """Return the balanced accuracy of the best rule that sees a gradient's label and nothing else.

    What a normalised gradient of a task with one logit gives away in any case is the sign of `dl/dz`, which is that of
    the label (positive: below 0). The best rule lays each code c to the task in which it is most frequent, hence
    `1/T sum_c max_t P(c | t)`, with the shares P among the rows at hand. These are the rows that the rule is judged on,
    so it is right a little more often than on new rows. For two tasks with shares a and b of positive labels it is
    `(1 + |a - b|) / 2`; for equal shares it is chance.

    Args:
        codes: whole numbers (T, N), as `GradientRows.codes`: the sign, or the class.
        kept: booleans (T, N), the gradients that count.

    Example:
        >>> codes = np.array([[1, 1, 1, 0], [1, 0, 0, 0]])
        >>> label_aware_chance(codes, np.ones_like(codes, bool))
        0.75
    """
    shares = [np.bincount(c[k], minlength=codes.max() + 1) / k.sum() for c, k in zip(codes, kept, strict=True)]
    return float(np.max(shares, axis=0).sum() / len(shares))
