"""The files of a comparison's folder, as the report reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradalign.errors import UserError
from gradalign.report.files import figure, number, read_json, read_table, read_text, read_yaml
from gradalign.report.run_files import Row, read_history

__all__ = ["BASELINE", "Compared", "ComparisonFiles", "RunOfComparison"]

BASELINE = "none"  # the plain sum, which every difference is to

_COMPARED = ("mean", "sd", "difference", "low", "high", "p", "p_corrected")


@dataclasses.dataclass(frozen=True)
class Compared:
    """A row of comparison.csv: one method, task and metric; `task` is empty for what is of a whole run.

    Args:
        method, task, metric: which.
        seeds: how many there are.
        mean, sd: over seeds.
        difference: mean of the paired differences to the plain sum; None for the plain sum itself.
        low, high: its 95 % interval; None where there is one seed.
        p, p_corrected: of no difference, as it is and corrected for the number of comparisons.
    """

    method: str
    task: str
    metric: str
    seeds: int
    mean: float | None
    sd: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None


@dataclasses.dataclass(frozen=True)
class RunOfComparison:
    """A run folder of a comparison, of which the report reads the curves, the probe's chances and what it warned of."""

    method: str
    seed: int
    path: Path
    history: list[Row]
    chances: tuple[float | None, float | None]  # blind and label-aware, of its probe
    warnings: list[str]

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(epoch, figure) of a column of the history, where there is one."""
        return [
            (row["epoch"], value)
            for row in self.history
            if (value := row.get(name)) is not None and row["epoch"] is not None
        ]


@dataclasses.dataclass(frozen=True)
class ComparisonFiles:
    """What a finished comparison left.

    Args:
        path: of the folder.
        asked: comparison.yaml: what was compared.
        asked_text: the same as text.
        rows: comparison.csv.
        results: results.csv, {(method, task, metric): {seed: value}}.
        deciles: calibration.csv, {(method, task): (decile, predicted / observed)}; empty where there is none.
        trials: trials.csv; empty where nothing was tuned.
        runs: the run folders that are still there.
    """

    path: Path
    asked: dict[str, Any]
    asked_text: str
    rows: list[Compared]
    results: dict[tuple[str, str, str], dict[int, float]]
    deciles: dict[tuple[str, str], list[tuple[float, float | None]]]
    trials: list[dict[str, str]]
    runs: list[RunOfComparison]

    @classmethod
    def read(cls, folder: Path) -> ComparisonFiles:
        """Read a comparison's folder.

        Raises:
            UserError: it is not finished, or a file is damaged.
        """
        asked, compared, trials = folder / "comparison.yaml", folder / "comparison.csv", folder / "trials.csv"
        if not compared.exists():
            raise UserError(
                f'The comparison in "{folder}" is not finished: it has no comparison.csv; give the same `gradalign '
                "compare` command again to go on."
            )
        return cls(
            path=folder,
            asked=read_yaml(asked),
            asked_text=read_text(asked),
            rows=_read_compared(compared),
            results=_read_results(folder / "results.csv"),
            deciles=_read_deciles(folder / "calibration.csv"),
            trials=read_table(trials, ("method", "trial")) if trials.exists() else [],
            runs=_read_runs(folder / "runs"),
        )

    @property
    def methods(self) -> list[str]:
        """The methods, the plain sum first."""
        found = list(dict.fromkeys(row.method for row in self.rows))
        return [*(m for m in found if m == BASELINE), *(m for m in found if m != BASELINE)]

    @property
    def tasks(self) -> list[str]:
        """The tasks' names."""
        return list(dict.fromkeys(row.task for row in self.rows if row.task))

    def metrics(self, task: str) -> list[str]:
        """The metrics of a task; those of whole runs for ""."""
        return list(dict.fromkeys(row.metric for row in self.rows if row.task == task))

    def row(self, method: str, task: str, metric: str) -> Compared | None:
        """The row of a method, task and metric; None where there is none."""
        return next((r for r in self.rows if (r.method, r.task, r.metric) == (method, task, metric)), None)

    def warnings(self) -> dict[str, list[str]]:
        """{method: what its runs warned of, each sentence once}; methods without a warning are left out."""
        said: dict[str, list[str]] = {}
        for run in self.runs:
            for sentence in run.warnings:
                if sentence not in said.setdefault(run.method, []):
                    said[run.method].append(sentence)
        return said

    def chances(self, method: str) -> tuple[float | None, float | None]:
        """Blind and label-aware chance of the probes of a method's runs, means over seeds."""
        found = [run.chances for run in self.runs if run.method == method]
        return _mean_of([blind for blind, _ in found]), _mean_of([aware for _, aware in found])


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _read_compared(path: Path) -> list[Compared]:
    rows = read_table(path, ("method", "task", "metric", "seeds", *_COMPARED))
    if not rows:
        raise UserError(f'"{path}" has no row in it; give the same `gradalign compare` command again.')
    found = []
    for row in rows:
        figures = {name: number(row[name], path, name) for name in _COMPARED}
        seeds = int(number(row["seeds"], path, "seeds") or 0)
        found.append(Compared(row["method"], row["task"], row["metric"], seeds, **figures))
    return found


def _read_results(path: Path) -> dict[tuple[str, str, str], dict[int, float]]:
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in read_table(path, ("method", "seed", "task", "metric", "value")):
        value, seed = number(row["value"], path, "value"), number(row["seed"], path, "seed")
        if value is not None and seed is not None:
            found.setdefault((row["method"], row["task"], row["metric"]), {})[int(seed)] = value
    return found


def _read_deciles(path: Path) -> dict[tuple[str, str], list[tuple[float, float | None]]]:
    found: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for row in read_table(path, ("method", "task", "decile", "ratio")) if path.exists() else ():
        decile, ratio = (number(row[name], path, name) for name in ("decile", "ratio"))
        found.setdefault((row["method"], row["task"]), []).append((decile or 0.0, ratio))
    return found


def _read_runs(folder: Path) -> list[RunOfComparison]:
    """Read each runs/<method>/seed-<k>, or the folders in it where each task has one."""
    found = []
    for of_seed in sorted(folder.glob("*/seed-*"), key=lambda path: (path.parent.name, _seed(path))):
        for history in sorted([*of_seed.glob("history.csv"), *of_seed.glob("*/history.csv")]):
            path = history.parent
            if path.name.endswith(".partial"):
                continue
            probe = path / "probe.json"
            of_probe = read_json(probe) if probe.exists() else {}
            blind, aware = (figure(of_probe, name, probe) for name in ("chance", "label_aware_chance"))
            method = of_seed.parent.name
            warnings = [said for name in ("cost.json", "measured.json") for said in _warnings(path / name)]
            found.append(RunOfComparison(method, _seed(of_seed), path, read_history(path), (blind, aware), warnings))
    return found


def _warnings(path: Path) -> list[str]:
    return [str(said) for said in read_json(path).get("warnings", [])] if path.exists() else []


def _seed(path: Path) -> int:
    number_of = path.name.removeprefix("seed-").removesuffix(".partial")
    return int(number_of) if number_of.isdecimal() else -1
