"""From run folders to results.csv, comparison.csv, calibration.csv and trials.csv."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gradalign.comparison.job import COST, MEASURED, Job
from gradalign.comparison.methods import BASELINE
from gradalign.comparison.statistics import holm, mean_and_sd, paired_difference
from gradalign.comparison.tuning import Trial
from gradalign.training.run_folder import Run, write_text

__all__ = ["CALIBRATION", "COMPARISON", "RESULTS", "TRIALS", "Compared", "Deciles", "Result", "compared", "results_of"]

RESULTS, COMPARISON, CALIBRATION, TRIALS = "results.csv", "comparison.csv", "calibration.csv", "trials.csv"
OF_RUN = ("seconds", "memory_mb", "probe_accuracy", "discriminator_accuracy")


@dataclasses.dataclass(frozen=True)
class Result:
    """What one run found: a value of a metric; `task` is empty for what is of the whole run."""

    method: str
    seed: int
    task: str
    metric: str
    value: float | None


@dataclasses.dataclass(frozen=True)
class Compared:
    """A method's seeds in one metric of one task, beside the plain sum's.

    Args:
        method, task, metric: which.
        seeds: that have a value.
        mean, sd: of them; no sd of one seed.
        difference: mean of the paired differences, method less plain sum; None for the plain sum itself.
        low, high: its 95 % interval; None with one seed.
        p, p_corrected: of no difference, as it is, and by Holm over the methods and tasks of the metric.
    """

    method: str
    task: str
    metric: str
    seeds: int
    mean: float
    sd: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_corrected: float | None = None


@dataclasses.dataclass(frozen=True)
class Deciles:
    """Calibration of a method by decile of the prediction: means over seeds of what was predicted and observed."""

    method: str
    task: str
    decile: int
    predicted: float
    observed: float

    @property
    def ratio(self) -> float | None:
        """Predicted / observed; None where nothing positive was observed."""
        return self.predicted / self.observed if self.observed else None


def results_of(method: str, seed: int, job: Job) -> tuple[list[Result], dict[str, list[list[float]]], list[str]]:
    """Read a finished job: its results, its tasks' deciles, and the warnings of its runs.

    Where each task has a run of its own, seconds are those of all runs, and memory that of the largest: they were
    trained one after another.
    """
    results, deciles, warnings = [], dict[str, list[list[float]]](), list[str]()
    seconds, memory, probes, discriminators = [], list[float | None](), [], []
    for folder in job.runs:
        measured, cost, metrics = _read(folder / MEASURED), _read(folder / COST), Run.open(folder).metrics
        for task, of_task in measured["tasks"].items():
            results += [Result(method, seed, task, metric, value) for metric, value in of_task.items()]
        deciles.update(measured["deciles"])
        warnings += [said for said in (*cost.get("warnings", []), *measured["warnings"]) if said not in warnings]
        seconds.append(float(metrics["training"]["seconds"]))
        memory.append(cost.get("memory_mb"))
        probes.append(measured["probe_accuracy"])
        discriminators.append(metrics["alignment"]["discriminator_accuracy"])
    known = [value for value in memory if value is not None]
    of_run: dict[str, float | None] = {
        "seconds": sum(seconds),
        "memory_mb": max(known) if len(known) == len(memory) else None,
        "probe_accuracy": probes[0] if len(probes) == 1 else None,
        "discriminator_accuracy": discriminators[0] if len(discriminators) == 1 else None,
    }
    return results + [Result(method, seed, "", metric, value) for metric, value in of_run.items()], deciles, warnings


def compared(results: Sequence[Result]) -> list[Compared]:
    """Compare each method with the plain sum, in every metric of every task that has a value.

    The rows come task by task, then metric by metric, methods in the order of `results`; p is corrected over the
    methods and tasks of one metric.
    """
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    for result in results:
        if result.value is not None:
            values.setdefault((result.task, result.metric, result.method), {})[result.seed] = result.value
    tasks, metrics, methods = (list(dict.fromkeys(getattr(r, key) for r in results)) for key in _KEYS)
    tasks.sort(key=lambda task: task == "")  # what is of whole runs comes last
    rows = []
    for task in tasks:
        for metric in metrics:
            for method in methods:
                found = values.get((task, metric, method))
                if found is None:
                    continue
                mean, sd = mean_and_sd(list(found.values()))
                row = Compared(method, task, metric, len(found), mean, sd)
                pair = None
                if method != BASELINE:
                    pair = paired_difference(found, values.get((task, metric, BASELINE), {}))
                if pair is not None:
                    row = dataclasses.replace(row, difference=pair.mean, low=pair.low, high=pair.high, p=pair.p)
                rows.append(row)
    return _corrected(rows)


_KEYS = ("task", "metric", "method")


def _corrected(rows: Sequence[Compared]) -> list[Compared]:
    corrected: dict[int, float] = {}
    for metric in dict.fromkeys(row.metric for row in rows):
        family = [i for i, row in enumerate(rows) if row.metric == metric and row.p is not None]
        found = holm([float(rows[i].p or 0.0) for i in family])
        corrected.update(zip(family, found, strict=True))
    return [dataclasses.replace(row, p_corrected=corrected.get(i)) for i, row in enumerate(rows)]


def mean_deciles(method: str, of_seeds: Sequence[dict[str, list[list[float]]]]) -> list[Deciles]:
    """Average a method's deciles over its seeds, where all of them have equally many."""
    found = []
    for task in of_seeds[0]:
        of_task = [deciles[task] for deciles in of_seeds]
        if len({len(deciles) for deciles in of_task}) == 1:
            for number, pairs in enumerate(zip(*of_task, strict=True), 1):
                predicted, observed = (statistics.fmean(pair[i] for pair in pairs) for i in (0, 1))
                found.append(Deciles(method, task, number, predicted, observed))
    return found


def write_results(
    folder: Path,
    results: Sequence[Result],
    rows: Sequence[Compared],
    deciles: Sequence[Deciles],
    trials: Sequence[Trial],
) -> None:
    """Write the comparison's tables, each whole or not at all; comparison.csv last, which says that all is done."""
    _write(folder / RESULTS, _names(Result), (dataclasses.astuple(result) for result in results))
    columns = [*_names(Deciles), "ratio"]
    _write(folder / CALIBRATION, columns, ((*dataclasses.astuple(d), d.ratio) for d in deciles))
    if trials:
        tried = ((t.method, t.number, json.dumps(t.settings), t.value) for t in trials)
        _write(folder / TRIALS, ["method", "trial", "parameters", "value"], tried)
    _write(folder / COMPARISON, _names(Compared), (dataclasses.astuple(row) for row in rows))


def _names(of: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(of)]


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found
