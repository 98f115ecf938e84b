"""The probe of a finished run: its frozen model's task gradients on rows that it was not trained on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from gradalign.data import EncodedRows
from gradalign.diagnostics import ProbeReport
from gradalign.diagnostics import probe as probe_gradients
from gradalign.errors import UserError
from gradalign.training.build import initial_model
from gradalign.training.evaluate import encoded
from gradalign.training.run_folder import Run, write_text

PROBE, PICTURE, POINTS = "probe.json", "probe.svg", "probe_points.csv"


def probe(
    run: Run,
    data: Path | None = None,
    *,
    normalize: str | None = None,
    sign_free: bool | None = None,
    rows: int = 10_000,
    seed: int = 0,
) -> ProbeReport:
    """Probe a run, and write probe.json, probe.svg and probe_points.csv into its folder, in place of older ones.

    The picture shows the gradients of the same rows at the weights that the run began with, too: `training.seed` and
    the config determine them. The run's report.html is written anew. Sets the random seeds of Python, NumPy and
    TensorFlow.

    Args:
        run: the run.
        data: a Parquet or CSV file with the inputs and the labels; by default the run's test part.
        normalize: "l2", "batch" or "none"; by default what the run's alignment does.
        sign_free: turn the gradients of positive rows round; by default what the run's alignment does.
        rows: that are used at most.
        seed: of what is drawn.

    Raises:
        UserError: the data cannot be read, has too few labels, or the run has one task only.
    """
    from gradalign.report import write_run_report

    if len(run.config.tasks) < 2:
        raise UserError(f'The probe tells tasks apart, and "{run.path}" has one only: {next(iter(run.config.tasks))}.')
    initial = initial_model(run.config, run.preprocessing(), run.metrics["training"]["steps"])
    with encoded(run, data) as held_out:
        report = report_of(
            run.model(), held_out, normalize=normalize, sign_free=sign_free, rows=rows, seed=seed, initial=initial
        )
    picture = run.path / f".{Path(PICTURE).stem}.tmp.svg"
    try:
        report.draw(picture)
        os.replace(picture, run.path / PICTURE)
        write_text(run.path / POINTS, report.points_csv())
        write_text(run.path / PROBE, json.dumps(report.to_json(), indent=2) + "\n")
    except OSError as error:
        raise UserError(f'The probe cannot be written to "{run.path}": {error.strerror}.') from None
    finally:
        picture.unlink(missing_ok=True)
    write_run_report(run.path)
    return report


def report_of(
    model: object,
    held_out: EncodedRows,
    *,
    normalize: str | None = None,
    sign_free: bool | None = None,
    rows: int = 10_000,
    seed: int = 0,
    initial: object = None,
) -> ProbeReport:
    """Probe a model on encoded rows, of which no more than the `rows` that are drawn are put into memory."""
    chosen = np.sort(np.random.RandomState(seed).permutation(len(held_out))[:rows])
    data = held_out.take(chosen)
    return probe_gradients(model, data, normalize=normalize, sign_free=sign_free, rows=rows, seed=seed, initial=initial)
