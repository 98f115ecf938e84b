"""The files of a run folder, as the report reads them: without TensorFlow, and without the run's data."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

from gradalign.errors import UserError
from gradalign.report.cloud import Points
from gradalign.report.files import figure, number, read_json, read_table, read_text, read_yaml

__all__ = ["BEFORE_AND_AFTER", "RunFiles", "read_history"]

BEFORE_AND_AFTER = ("before training", "after training")

Row = dict[str, float | None]


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """What a finished run left.

    Args:
        path: of the folder.
        config: config.yaml, resolved.
        config_text: the same as text.
        history: history.csv, a row an epoch; None for NaN.
        metrics: metrics.json.
        probe: probe.json; None where no probe was run.
        points: probe_points.csv, {"before training", "after training": {task: points}}; empty where there is none.
    """

    path: Path
    config: dict[str, Any]
    config_text: str
    history: list[Row]
    metrics: dict[str, Any]
    probe: dict[str, Any] | None
    points: dict[str, dict[str, Points]]

    @classmethod
    def read(cls, folder: Path) -> RunFiles:
        """Read a run folder.

        Raises:
            UserError: a file is missing or damaged.
        """
        metrics, probe = read_json(folder / "metrics.json"), folder / "probe.json"
        for part in ("test", "alignment", "training", "versions"):
            if not isinstance(metrics.get(part), dict):
                raise UserError(
                    f'"{folder / "metrics.json"}" is damaged: it has no "{part}"; restore it, or train the run again.'
                )
        return cls(
            path=folder,
            config=read_yaml(folder / "config.yaml"),
            config_text=read_text(folder / "config.yaml"),
            history=read_history(folder),
            metrics=metrics,
            probe=read_json(probe) if probe.exists() else None,
            points=_read_points(folder / "probe_points.csv"),
        )

    @property
    def tasks(self) -> list[str]:
        """The tasks' names."""
        return list(self.metrics["test"])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each pair of tasks."""
        return list(itertools.combinations(self.tasks, 2))

    def of_alignment(self, name: str) -> float | None:
        """A figure of metrics.json's "alignment"."""
        return figure(self.metrics["alignment"], name, self.path / "metrics.json")

    def of_training(self, name: str) -> float | None:
        """A figure of metrics.json's "training"."""
        return figure(self.metrics["training"], name, self.path / "metrics.json")

    def of_test(self, task: str, name: str) -> float | None:
        """A figure of a task of metrics.json's "test"."""
        return figure(self.metrics["test"][task], name, self.path / "metrics.json")

    def of_probe(self, name: str) -> float | None:
        """A figure of probe.json; None where no probe was run."""
        return None if self.probe is None else figure(self.probe, name, self.path / "probe.json")

    def pair_of_probe(self, name: str) -> tuple[float | None, float | None]:
        """Two figures of probe.json, such as the ends of the interval."""
        found = (self.probe or {}).get(name)
        if not isinstance(found, list) or len(found) != 2:
            return None, None
        low, high = (figure({name: value}, name, self.path / "probe.json") for value in found)
        return low, high

    def setting(self, *keys: str) -> Any:
        """A value of the config, by the keys that lead to it; None where there is none."""
        found: Any = self.config
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def curve(self, name: str) -> list[tuple[float, float | None]]:
        """(epoch, figure) of a column of the history; empty where it has no such column, or no figure in it."""
        points = [(row["epoch"] or 0.0, row[name]) for row in self.history if name in row]
        return points if any(value is not None for _, value in points) else []


def read_history(folder: Path) -> list[Row]:
    """Read a run's history.csv.

    Raises:
        UserError: it is missing, damaged or empty.
    """
    path = folder / "history.csv"
    rows: list[Row] = [
        {name: number(text, path, name) for name, text in row.items()} for row in read_table(path, ("epoch", "seconds"))
    ]
    if not rows:
        raise UserError(f'"{path}" has no epoch in it; train the run again.')
    return rows


def _read_points(path: Path) -> dict[str, dict[str, Points]]:
    if not path.exists():
        return {}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in read_table(path, ("moment", "task", "first", "second")):
        first, second = (number(row[name], path, name) for name in ("first", "second"))
        if first is not None and second is not None:
            found.setdefault(row["moment"], {}).setdefault(row["task"], []).append((first, second))
    return {moment: dict(of_moment) for moment, of_moment in found.items()}
