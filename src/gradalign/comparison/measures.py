"""What is measured of a finished run, beyond its metrics.json."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from gradalign.comparison.calibration import calibration
from gradalign.comparison.ranking import CUT, gauc, mean_ndcg
from gradalign.data import Part
from gradalign.data.columns import check_column
from gradalign.errors import UserError
from gradalign.training.encoding import Encoder, sources
from gradalign.training.measure import measure
from gradalign.training.probe import PROBE, report_of
from gradalign.training.rows import read_tables
from gradalign.training.run_folder import Run, write_text
from gradalign.training.scoring import scores_of_rows

__all__ = ["measures"]


def measures(run: Run, part: Literal["test", "validation"], probe_as: dict[str, Any] | None) -> dict[str, Any]:
    """Measure a run's model on its test or its validation part, and write probe.json where it is probed.

    Args:
        run: the run.
        part: that is measured.
        probe_as: arguments of the probe; None for no probe. A run of one task has none either.

    Returns:
        {"tasks": {task: {metric: value}}, "deciles": {task: [[predicted, observed], ...]}, "probe_accuracy": a share or
        None, "warnings": [sentence]}, where a value is None where it does not exist.

    Raises:
        UserError: the data cannot be read, or is not as it was when the run was trained.
    """
    tables, model = read_tables(run.config.data), run.model()
    of_part, source = getattr(tables, part), sources(run.config.data)[part]
    assert of_part is not None  # asked for before anything was trained
    groups = _groups(of_part, run.config.data.group, source)
    found: dict[str, Any] = {"tasks": {}, "deciles": {}, "probe_accuracy": None, "warnings": []}
    with tempfile.TemporaryDirectory(prefix="gradalign-") as folder:
        rows = Encoder(run.config, run.preprocessing(), tables, Path(folder)).encode(of_part, part)
        _, labels = rows
        scores = scores_of_rows(model.base, rows)
        for task, of_task in measure(labels, scores).items():
            labelled = ~np.isnan(labels[task])
            y, p = labels[task][labelled].astype(np.int64), scores[task][labelled].astype(np.float64)
            calibrated = calibration(y, p)
            found["tasks"][task] = {
                "auc": of_task["auc"],
                "log_loss": of_task["log_loss"],
                "calibration": None if calibrated is None else calibrated.ratio,
                "calibration_error": None if calibrated is None else calibrated.error,
            }
            if groups is not None:
                found["tasks"][task]["gauc"] = gauc(y, p, groups[labelled])
                found["tasks"][task][f"ndcg@{CUT}"] = mean_ndcg(y, p, groups[labelled])
            found["deciles"][task] = [] if calibrated is None else [list(decile) for decile in calibrated.deciles]
        if probe_as is not None and len(run.config.tasks) > 1:
            try:
                probed = report_of(model, rows, **probe_as)
            except UserError as error:  # too few labels, say: the run itself is good
                found["warnings"].append(f"No probe: {error}")
            else:
                found["probe_accuracy"] = probed.accuracy
                write_text(run.path / PROBE, json.dumps(probed.to_json(), indent=2) + "\n")
    return found


def _groups(part: Part, column: str | None, source: str) -> np.ndarray | None:
    """A number for each row's value in the group's column, -1 where it has none; None without such a column."""
    if column is None:
        return None
    tables = part.tables([column]) if part.file.is_parquet else [part.table()]
    values = []
    for table in tables:
        check_column(table, column, "`data.group` names", source)
        values.append(table[column])
    joined = pa.chunked_array([chunk for value in values for chunk in value.chunks])
    if pa.types.is_nested(joined.type):
        raise UserError(f'data.group names column "{column}" of {source}, which holds lists or records; name another.')
    encoded = joined if pa.types.is_dictionary(joined.type) else joined.dictionary_encode()
    codes = encoded.unify_dictionaries().combine_chunks().indices
    return np.asarray(codes.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
