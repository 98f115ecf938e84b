"""The metrics of a finished run, on its test part or on any file with the same columns."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gradalign.data import DataFile, EncodedRows, Part
from gradalign.data.cache import Cache
from gradalign.training.encoding import Encoder
from gradalign.training.measure import TaskMetrics, measure
from gradalign.training.rows import Tables, memory_limit, read_tables
from gradalign.training.run_folder import Run
from gradalign.training.scoring import scores_of_rows


def evaluate(run: Run, data: Path | None = None) -> dict[str, TaskMetrics]:
    """Return {task: {"auc", "log_loss", "rows", "positives"}}.

    Args:
        run: the run.
        data: a Parquet or CSV file with the inputs and the labels; by default the run's test part, read again.

    Raises:
        UserError: the file is missing or damaged, or lacks a column.
    """
    with encoded(run, data) as rows:
        _, truth = rows
        return measure(truth, scores_of_rows(run.model().base, rows))


@contextlib.contextmanager
def encoded(run: Run, data: Path | None = None) -> Iterator[EncodedRows]:
    """Give the encoded rows that `evaluate` measures on; arguments and errors are its own."""
    settings, preprocessing = run.config.data, run.preprocessing()
    if data is None:
        tables = read_tables(settings)
    else:  # of no concern to the run's own files, which may be gone
        part = Part(DataFile(data, lambda: preprocessing.types))
        tables = Tables(part, None, part, memory_limit(settings.memory_gb), Cache() if settings.cache else None)
    with tempfile.TemporaryDirectory(prefix="gradalign-") as folder:
        encoder = Encoder(run.config, preprocessing, tables, Path(folder))
        yield encoder.encode(tables.test, "test", str(data) if data is not None else "the test part")
