"""What a comparison's metrics are called, and which way is better."""

from __future__ import annotations

from gradalign.report.numbers import decimals_of

__all__ = ["better", "decimals", "heading", "title"]

_TITLES = {
    "auc": "AUC",
    "log_loss": "log loss",
    "calibration": "calibration",
    "calibration_error": "calibration error",
    "gauc": "GAUC",
    "seconds": "seconds of training",
    "memory_mb": "peak memory in MB",
    "probe_accuracy": "probe accuracy",
    "discriminator_accuracy": "discriminator accuracy",
}
_COARSE = ("seconds", "memory_mb")  # nobody wants to know them to the millisecond or the byte
_HIGHER, _LOWER = ("auc", "gauc"), ("log_loss", "calibration_error", "seconds", "memory_mb")


def title(metric: str) -> str:
    """Return what a metric is called.

    Example:
        >>> title("log_loss"), title("ndcg@10")
        ('log loss', 'NDCG@10')
    """
    if metric.startswith("ndcg@"):
        return metric.upper()
    return _TITLES.get(metric, metric.replace("_", " "))


def heading(metric: str) -> str:
    """Return what a metric is called at the beginning of a line.

    Example:
        >>> heading("memory_mb")
        'Peak memory in MB'
    """
    return title(metric)[0].upper() + title(metric)[1:]


def decimals(metric: str, spread: float | None) -> int:
    """Return how many decimals a metric is written with, where it spreads as far as `spread`.

    Example:
        >>> decimals("auc", 0.00042), decimals("seconds", 0.00042)
        (5, 1)
    """
    return decimals_of(spread, most=1 if metric in _COARSE else 6)


def better(metric: str, difference: float) -> str:
    """Return "better" or "worse" for a difference; "" for a metric of which neither way is better as such.

    Example:
        >>> better("auc", 0.1), better("log_loss", 0.1), better("calibration", 0.1)
        ('better', 'worse', '')
    """
    if metric in _HIGHER or metric.startswith("ndcg@"):
        return "better" if difference > 0 else "worse"
    if metric in _LOWER:
        return "better" if difference < 0 else "worse"
    return ""
