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
from gradalign.training.evaluate import encoded
from gradalign.training.run_folder import Run, write_text

PROBE, PICTURE = "probe.json", "probe.svg"


def probe(
    run: Run, data: Path | None = None, *, normalize: str | None = None, rows: int = 10_000, seed: int = 0
) -> ProbeReport:
    """Probe a run, and write probe.json and probe.svg into its folder, in place of older ones.

    Args:
        run: the run.
        data: a Parquet or CSV file with the inputs and the labels; by default the run's test part.
        normalize: "l2", "batch" or "none"; by default what the run's alignment does.
        rows: that are used at most.
        seed: of what is drawn.

    Raises:
        UserError: the data cannot be read, has too few labels, or the run has one task only.
    """
    if len(run.config.tasks) < 2:
        raise UserError(f'The probe tells tasks apart, and "{run.path}" has one only: {next(iter(run.config.tasks))}.')
    with encoded(run, data) as held_out:
        report = report_of(run.model(), held_out, normalize=normalize, rows=rows, seed=seed)
    picture = run.path / f".{Path(PICTURE).stem}.tmp.svg"
    try:
        report.draw(picture)
        os.replace(picture, run.path / PICTURE)
        write_text(run.path / PROBE, json.dumps(report.to_json(), indent=2) + "\n")
    except OSError as error:
        raise UserError(f'The probe cannot be written to "{run.path}": {error.strerror}.') from None
    finally:
        picture.unlink(missing_ok=True)
    return report


def report_of(
    model: object, held_out: EncodedRows, *, normalize: str | None = None, rows: int = 10_000, seed: int = 0
) -> ProbeReport:
    """Probe a model on encoded rows, of which no more than the `rows` that are drawn are put into memory."""
    chosen = np.sort(np.random.RandomState(seed).permutation(len(held_out))[:rows])
    return probe_gradients(model, held_out.take(chosen), normalize=normalize, rows=rows, seed=seed)
