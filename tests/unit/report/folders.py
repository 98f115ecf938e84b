"""Folders as `gradalign train` and `gradalign compare` leave them, written by hand and small."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# A name that would be markup, and one that is longer than a phone is wide.
HOSTILE = "<img src=x onerror=alert(1)>"
LONG = "conversion_within_thirty_days_of_the_first_visit_from_any_of_the_campaigns"

CONFIG = f"""\
name: shop
data: {{train: "/data/{HOSTILE}.parquet", test: /data/test.parquet}}
tasks:
  buy: {{label: bought, positive: [1]}}
  {LONG}: {{label: liked, positive: [yes]}}
model: {{architecture: shared_private, shared_dim: 8, towers: [64, 32]}}
alignment: {{method: adversarial, weight: 0.1, normalize: batch, tasks: null, sign_free: false}}
training: {{batch_size: 1024, epochs: 3, learning_rate: 0.001, seed: 7, monitor_every: 50}}
"""

HISTORY: dict[str, list[float | str]] = {
    "epoch": [1, 2, 3],
    "loss": [1.2, 1.0, 0.9],
    "buy_auc": [0.6, 0.7, 0.75],
    "buy_loss": [0.6, 0.5, 0.45],
    "val_buy_auc": [0.65, 0.72, 0.7251],
    "val_buy_loss": [0.55, 0.5, 0.49],
    f"{LONG}_auc": [0.7, 0.8, 0.85],
    f"{LONG}_loss": [0.5, 0.4, 0.35],
    f"val_{LONG}_auc": [0.75, 0.82, 0.83],
    f"val_{LONG}_loss": [0.45, 0.41, 0.405],
    "discriminator_accuracy": [0.9, 0.85, 0.82],
}
MONITORED: dict[str, list[float | str]] = {
    "buy_discriminator_accuracy": [0.92, 0.9, 0.88],
    f"{LONG}_discriminator_accuracy": [0.85, "nan", 0.8],
    "buy_discriminator_cross_entropy": [0.2, 0.3, 0.35],
    f"{LONG}_discriminator_cross_entropy": [0.3, "nan", 0.4],
    "discriminator_chance": [0.5, 0.5, 0.5],
    "discriminator_label_aware_chance": [0.625, 0.625, 0.625],
    f"buy_{LONG}_gradient_cosine": [-0.25, -0.1, 0.05],
    f"buy_{LONG}_conflicting_rows": [0.8, 0.6, 0.45],
    "buy_gradient_norm": [0.4, 0.35, 0.3],
    f"{LONG}_gradient_norm": [0.2, 0.18, 0.17],
    "alignment_share": [0.3, 0.2, 0.12],
    "alignment_strength": [0.05, 0.09, 0.1],
}
SECONDS: dict[str, list[float | str]] = {"seconds": [12.5, 3.0, 3.5]}

METRICS: dict[str, Any] = {
    "test": {
        "buy": {"auc": 0.72345, "log_loss": 0.4812, "rows": 49881, "positives": 3022},
        LONG: {"auc": None, "log_loss": 0.31, "rows": 60, "positives": 60},
    },
    "alignment": {
        "method": "adversarial",
        "strength": 0.1,
        "discriminator_accuracy": 0.82,
        "chance": 0.5,
        "label_aware_chance": 0.625,
        "second_to_first_order_ratio": 1.364,
        "share_of_gradient": 0.12,
    },
    "training": {"epochs": 3, "steps": 588, "seconds": 19.0, "rows_per_second": 31500.5},
    "versions": {"gradalign": "0.1.0", "tensorflow": "2.21.0"},
}

PROBE: dict[str, Any] = {
    "accuracy": 0.9312,
    "interval": [0.9201, 0.9423],
    "chance": 0.5,
    "label_aware_chance": 0.6301,
    "normalize": "batch",
    "variances": [0.61, 0.22],
    "verdict": "The probe tells the tasks' gradients apart & <more>.",
}


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def write_history(folder: Path, columns: dict[str, list[float | str]]) -> None:
    write_csv(folder / "history.csv", list(columns), list(zip(*columns.values(), strict=True)))


def write_run(folder: Path, *, monitored: bool = True, probed: bool = True, **alignment: Any) -> Path:
    """Write a run folder; `alignment` overrides figures of metrics.json."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    write_history(folder, {**HISTORY, **(MONITORED if monitored else {}), **SECONDS})
    metrics = {**METRICS, "alignment": {**METRICS["alignment"], **alignment}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    if probed:
        (folder / "probe.json").write_text(json.dumps(PROBE))
        circle = [(0.5, 0.1), (-0.4, 0.3), (0.2, -0.6), (-0.1, -0.2)]
        points = [
            (moment, task, scale * x, scale * y)
            for moment, scale in (("before training", 2.0), ("after training", 1.0))
            for task in ("buy", LONG)
            for x, y in circle
        ]
        write_csv(folder / "probe_points.csv", ["moment", "task", "first", "second"], points)
    return folder


COMPARED = ["method", "task", "metric", "seeds", "mean", "sd", "difference", "low", "high", "p", "p_corrected"]
# A difference that is told, one that correction takes back, and none; the worse way for the long task.
DIFFERENCES: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("adversarial", "buy", "auc"): (0.0023, 0.0011, 0.0035, 0.004, 0.012),
    ("adversarial", LONG, "auc"): (-0.004, -0.0051, -0.0029, 0.0001, 0.0003),
    (HOSTILE, "buy", "auc"): (0.0009, 0.0001, 0.0017, 0.04, 0.12),
    (HOSTILE, LONG, "auc"): (0.0002, -0.001, 0.0014, 0.7, 1.0),
    # Four round numbers are in this range, and an axis has room for three.
    **{
        (m, "buy", "calibration_error"): (0.0001, -0.00102, 0.00084, 0.5, 1.0)
        for m in ("single", "adversarial", HOSTILE)
    },
}
MEANS = {"auc": 0.72, "log_loss": 0.48, "calibration": 1.02, "calibration_error": 0.011}
OF_RUNS = {"seconds": 20.0, "memory_mb": 900.0, "probe_accuracy": 0.93, "discriminator_accuracy": 0.82}


def write_comparison(folder: Path, *, with_runs: bool = True, trials: bool = True) -> Path:
    """Write a comparison's folder: the plain sum, single tasks, an alignment, and a method with a hostile name."""
    folder.mkdir(parents=True)
    methods = ["none", "single", "adversarial", HOSTILE]
    changes = {"none": {"alignment": {"method": "none"}}, "single": {}, "adversarial": ["alignment.weight=0.1"]}
    asked = {"config": {"name": "shop"}, "methods": {**changes, HOSTILE: None}, "seeds": 5, "trials": 2}
    (folder / "comparison.yaml").write_text(json.dumps(asked))  # JSON is YAML
    rows: list[list[object]] = []
    results: list[list[object]] = []
    for number, method in enumerate(methods):
        cells = [(task, metric, mean) for task in ("buy", LONG) for metric, mean in MEANS.items()]
        for task, metric, mean in [*cells, *(("", metric, mean) for metric, mean in OF_RUNS.items())]:
            if method == "single" and metric in ("probe_accuracy", "discriminator_accuracy"):
                continue
            of_method = mean * (1 + 0.01 * number)
            told = DIFFERENCES.get((method, task, metric), (0.001, -0.002, 0.004, 0.5, 1.0))
            rows.append([method, task, metric, 5, of_method, 0.00123, *(("",) * 5 if method == "none" else told)])
            results += [[method, seed, task, metric, of_method + 0.001 * (seed - 2)] for seed in range(5)]
    write_csv(folder / "comparison.csv", COMPARED, rows)
    write_csv(folder / "results.csv", ["method", "seed", "task", "metric", "value"], results)
    if trials:
        tried = [[method, trial, "alignment.weight=0.1", 0.7 + 0.01 * trial] for method in methods for trial in (0, 1)]
        write_csv(folder / "trials.csv", ["method", "trial", "parameters", "validation"], tried)
    ratios = [[method, "buy", decile, 0.1, 0.1, 1 + 0.01 * decile] for method in methods for decile in range(1, 11)]
    write_csv(folder / "calibration.csv", ["method", "task", "decile", "predicted", "observed", "ratio"], ratios)
    for method in methods[:3] if with_runs else ():
        for seed in range(2):
            _write_runs(folder / "runs" / method / f"seed-{seed}", method, seed)
    return folder


def _write_runs(folder: Path, method: str, seed: int) -> None:
    if method == "single":
        for task in ("buy", LONG):
            folder.joinpath(task).mkdir(parents=True)
            columns = {"epoch": [1, 2], f"val_{task}_auc": [0.6, 0.7], "seconds": [2.0, 1.0]}
            write_history(folder / task, columns)  # type: ignore[arg-type]
        return
    folder.mkdir(parents=True)
    # The mean over both seeds of validation AUC is 0.65 and 0.72, plus 0.01 with an alignment.
    more = (0.01 if method == "adversarial" else 0.0) + (0.02 if seed else -0.02)
    columns = {"epoch": [1, 2], "val_buy_auc": [0.65 + more, 0.72 + more], "seconds": [2.0, 1.0]}
    write_history(folder, columns)  # type: ignore[arg-type]
    (folder / "probe.json").write_text(json.dumps({"chance": 0.5, "label_aware_chance": 0.6 + 0.02 * seed}))
    if method == "adversarial":  # one sentence in both seeds, and another in one
        (folder / "cost.json").write_text(json.dumps({"memory_mb": 1.0, "warnings": [f"Layer {HOSTILE} is frozen."]}))
        (folder / "measured.json").write_text(json.dumps({"warnings": ["No probe: few labels."] if seed else []}))
    if seed == 0:
        (folder / "report.html").write_text("<!DOCTYPE html><title>run</title>")
