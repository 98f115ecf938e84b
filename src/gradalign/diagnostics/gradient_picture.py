"""A picture of the tasks' gradients in two dimensions, after training, or before and after."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

__all__ = ["draw_points", "two_dimensions"]

Key = TypeVar("Key", bound=Hashable)

# Told apart by shape, and by lightness in grey.
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
_COLOURS = ("#174a7e", "#e8890c", "#5aa469", "#9b3fb5", "#c23b3b", "#8f7a1e", "#3fb8c4", "#6b6b6b")
_INSIDE = 0.99  # share of the points that the axes show


def two_dimensions(gradients: Mapping[Key, np.ndarray]) -> tuple[dict[Key, np.ndarray], tuple[float, float]]:
    """Return the gradients along the two directions in which they vary most (principal component analysis).

    Args:
        gradients: {key: (n, D)}, D of 1 or more; all of them get the same two directions.

    Returns:
        {key: (n, 2)} and the shares of the variance along both directions; zeros where there is one dimension.
    """
    together = np.concatenate(list(gradients.values())).astype(np.float64)
    centre = together.mean(0)
    _, sizes, directions = np.linalg.svd(together - centre, full_matrices=False)
    variances = np.pad(np.square(sizes), (0, 2))
    # The sign of a direction is arbitrary; so that one seed gives one picture, its largest entry is positive.
    plane = np.zeros((together.shape[1], 2))
    for i, direction in enumerate(directions[:2]):
        plane[:, i] = direction * np.sign(direction[np.abs(direction).argmax()] or 1.0)
    shares = variances[:2] / max(variances.sum(), 1e-300)
    points = {key: (g - centre) @ plane for key, g in gradients.items()}
    return points, (float(shares[0]), float(shares[1]))


def draw_points(
    panels: Mapping[str, Mapping[str, np.ndarray]], shares: tuple[float, float], title: str, path: str | Path
) -> None:
    """Write a picture of points by task, each panel with the same axes.

    Args:
        panels: {what a panel shows: {task: (n, 2)}}; a single panel goes without its name.
        shares: of the variance along both axes.
        title: above the picture.
        path: to write; `.svg` or `.png`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    together = np.abs(np.concatenate([points for panel in panels.values() for points in panel.values()]))
    edge = 1.1 * float(np.quantile(together.max(1), _INSIDE)) or 1.0
    # Neither a window nor settings of the process: a figure of its own.
    with mpl.rc_context({"svg.hashsalt": "gradalign", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(5.5 * len(panels) + 0.5, 5.5), layout="constrained")
        figure.suptitle(title)
        for axes, (name, panel) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for number, (task, of_task) in enumerate(panel.items()):
                kind = number % len(_MARKERS)
                look: dict[str, Any] = {"marker": _MARKERS[kind], "color": _COLOURS[kind], "alpha": 0.6}
                axes.scatter(of_task[:, 0], of_task[:, 1], s=16, label=task, linewidths=0, **look)
            axes.set(xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal", title=name if len(panels) > 1 else "")
            axes.set_xlabel(f"first principal component ({shares[0]:.0%} of the variance)")
            axes.set_ylabel(f"second principal component ({shares[1]:.0%} of the variance)")
            axes.legend(title="task", loc="upper right")
        target = Path(path)
        metadata = {"Date": None} if target.suffix == ".svg" else None
        figure.savefig(target, format=target.suffix[1:], dpi=150, metadata=metadata, bbox_inches="tight")
