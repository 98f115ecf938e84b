"""What a probe found: figures, a table, a verdict in words, and a picture."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np

from gradalign.diagnostics.gradient_picture import draw_points

__all__ = ["Distance", "ProbeReport"]


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far apart the normalised gradients of two tasks lie, at most 1,000 of each.

    Args:
        tasks: the two.
        squared_mmd: unbiased, see `gradient_distances.squared_mmd`; about 0, or below, where they are alike.
        sliced_wasserstein: see `gradient_distances.sliced_wasserstein`, in the unit of the gradients.
        shuffled_sliced_wasserstein: the same after shuffling which gradient is whose, mean of five: what gradients that
            are distributed alike come to.
    """

    tasks: tuple[str, str]
    squared_mmd: float
    sliced_wasserstein: float
    shuffled_sliced_wasserstein: float


@dataclasses.dataclass(frozen=True)
class ProbeReport:
    """What `gradalign.probe` found; `str()` of it is the text.

    Args:
        accuracy: balanced accuracy on the test rows: the mean over tasks of the share of gradients named right.
        interval: its bootstrap interval, over rows, a row with all of its gradients.
        confidence: of the interval.
        accuracy_by_task: {task: share of its gradients named right}.
        chance: of a blind guess, 1 / number of tasks.
        label_aware_chance: what the labels alone give away, see `probe_classifier.label_aware_chance`; with
            `sign_free`, `chance`.
        gradients: {task: gradients on the test rows}.
        rows: {"fit", "stop", "test": rows of the data}, none of which is in two.
        distances: of each pair of tasks.
        normalize: how the gradients were normalised.
        sign_free: whether gradients of positive labels were turned round.
        seed: of what was drawn.
        points: {task: (n, 2)}, at most 500 gradients on the test rows along their two principal components.
        variances: the components' shares of the variance.
        initial_points: the same rows' gradients before training, in the same coordinates, which then are the principal
            components of both; None where no initial model was given.
    """

    accuracy: float
    interval: tuple[float, float]
    confidence: float
    accuracy_by_task: dict[str, float]
    chance: float
    label_aware_chance: float
    gradients: dict[str, int]
    rows: dict[str, int]
    distances: list[Distance]
    normalize: str
    sign_free: bool
    seed: int
    points: dict[str, np.ndarray]
    variances: tuple[float, float]
    initial_points: dict[str, np.ndarray] | None = None

    @property
    def verdict(self) -> str:
        """One sentence: are the gradients told apart, and is it more than the labels give away?"""
        found = f"{self.accuracy:.3f} ({self.interval[0]:.3f} to {self.interval[1]:.3f})"
        if self.interval[0] <= self.chance:
            return (
                f"The probe cannot tell the tasks' gradients apart: its balanced accuracy is {found}, where a blind "
                f"guess has {self.chance:.3f}."
            )
        if self.interval[0] <= self.label_aware_chance:
            return (
                "The probe names the task of a gradient better than a blind guess, but no better than the labels' "
                f"signs alone allow: its balanced accuracy is {found}, and they allow {self.label_aware_chance:.3f}; "
                "this says nothing about the representation."
            )
        return (
            f"The probe tells the tasks' gradients apart, beyond what the labels give away: its balanced accuracy is "
            f"{found}, where the labels' signs alone allow {self.label_aware_chance:.3f}."
        )

    def __str__(self) -> str:
        level = f"{self.confidence:.0%}"
        kind = f'normalize="{self.normalize}"' + (", sign-free" if self.sign_free else "")
        lines = [
            f"Probe of the task gradients ({kind}) on {self.rows['test']:,} test rows",
            f"  balanced accuracy      {self.accuracy:.4f}  ({level} interval {self.interval[0]:.4f} to "
            f"{self.interval[1]:.4f})",
            f"  chance, blind          {self.chance:.4f}",
            f"  chance, label-aware    {self.label_aware_chance:.4f}",
            "",
        ]
        width = max(4, *map(len, self.accuracy_by_task))
        lines.append(f"  {'task':<{width}}  gradients  named right")
        for task, accuracy in self.accuracy_by_task.items():
            lines.append(f"  {task:<{width}}  {self.gradients[task]:>9,}  {accuracy:>11.4f}")
        pairs = [" - ".join(distance.tasks) for distance in self.distances]
        width = max(5, *map(len, pairs))
        lines += ["", f"  {'tasks':<{width}}  squared MMD  sliced Wasserstein  shuffled"]
        for pair, distance in zip(pairs, self.distances, strict=True):
            lines.append(
                f"  {pair:<{width}}  {distance.squared_mmd:>11.5f}  {distance.sliced_wasserstein:>18.5f}  "
                f"{distance.shuffled_sliced_wasserstein:>8.5f}"
            )
        return "\n".join([*lines, "", self.verdict])

    def to_json(self) -> dict[str, Any]:
        """Return all of it but the points, and the verdict, as JSON holds it."""
        points = ("points", "initial_points")
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in points}
        found["distances"] = [dataclasses.asdict(distance) for distance in self.distances]
        return {**found, "verdict": self.verdict}

    def points_csv(self) -> str:
        """Return the points as CSV: moment ("before training" or "after training"), task, first, second."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["moment", "task", "first", "second"])
        for moment, panel in self._panels().items():
            for task, of_task in panel.items():
                writer.writerows([moment, task, f"{x:.5g}", f"{y:.5g}"] for x, y in of_task.tolist())
        return text.getvalue()

    def draw(self, path: str | Path) -> None:
        """Write the picture, `.svg` or `.png`: the points by task, before and after training, with equal axes."""
        title = f"Task gradients, probe accuracy {self.accuracy:.3f} (chance {self.chance:.3f})"
        draw_points(self._panels(), self.variances, title, path)

    def _panels(self) -> dict[str, dict[str, np.ndarray]]:
        before = {} if self.initial_points is None else {"before training": self.initial_points}
        return {**before, "after training": self.points}
