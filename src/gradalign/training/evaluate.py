"""The metrics of a finished run, on its test part or on any file with the same columns."""

from __future__ import annotations

from pathlib import Path

from gradalign.data import labels, read_table
from gradalign.training.build import tasks_of
from gradalign.training.measure import TaskMetrics, measure
from gradalign.training.rows import read_tables
from gradalign.training.run_folder import Run
from gradalign.training.scoring import scores


def evaluate(run: Run, data: Path | None = None) -> dict[str, TaskMetrics]:
    """Return {task: {"auc", "log_loss", "rows", "positives"}}.

    Args:
        run: the run.
        data: a Parquet or CSV file with the inputs and the labels; by default the run's test part, read again.

    Raises:
        UserError: the file is missing or damaged, or lacks a column.
    """
    preprocessing = run.preprocessing()
    if data is None:
        table, source = read_tables(run.config.data).test, "the test part"
    else:
        table, source = read_table(data, preprocessing.types), str(data)
    truth = labels(table, tasks_of(run.config), source)
    return measure(truth, scores(run.model().base, preprocessing.encode(table, source)))
