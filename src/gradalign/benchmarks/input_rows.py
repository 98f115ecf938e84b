"""Rows of the case `input`: an epoch of the bundled config, from a Parquet file and from tensors in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import tensorflow as tf

from gradalign.benchmarks.row import Row, RowKind
from gradalign.data import EncodedRows, labels, read_table
from gradalign.multi_task_model import MultiTaskModel
from gradalign.training.batches import shuffled_batches, steps_per_epoch
from gradalign.training.build import build_model, prepare
from gradalign.training.config_file import load_config
from gradalign.training.encoding import Prepared
from gradalign.training.rows import read_tables

__all__ = ["INPUT_ROWS", "Epoch"]


class Epoch:
    """The bundled config, its training part as a Parquet file and as arrays.

    Args:
        batch: rows of a batch.
        row_limit: at most this many rows; `None` for all.
    """

    def __init__(self, batch: int, row_limit: int | None) -> None:
        changes = [f"training.batch_size={batch}"] + ([f"data.limit={row_limit}"] if row_limit else [])
        config = load_config("census-income", changes)
        tables = read_tables(config.data)
        self.prepared: Prepared = prepare(config, tables)
        self._folder = tempfile.TemporaryDirectory(prefix="gradalign-bench-")
        self.path = Path(self._folder.name) / "train.parquet"
        pq.write_table(tables.train.table(), self.path)
        self.rows = tables.train.rows
        self.batch = batch
        self.steps = steps_per_epoch(self.rows, self.batch)

    def model(self) -> MultiTaskModel:
        """Return the config's model, compiled."""
        return build_model(self.prepared.config, self.prepared.preprocessing, self.steps)

    def decoded(self) -> EncodedRows:
        """Read the Parquet file and encode it."""
        table = read_table(self.path)
        return EncodedRows.of(self.prepared.preprocessing.encode(table), labels(table, self.prepared.schema))

    def batches(self, rows: EncodedRows) -> tf.data.Dataset:
        """Return the shuffled batches of one epoch."""
        return shuffled_batches(rows, self.batch, 0, 0, 1)


def _bare_step(epoch: Epoch) -> Callable[[], object]:
    """The train function on full batches that are tensors already, as many as an epoch has."""
    model = epoch.model()
    ready = list(epoch.batches(epoch.prepared.train).take(min(epoch.steps, 16)))
    full = [batch for batch in ready if len(next(iter(batch[1].values()))) == epoch.batch]
    stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *full)
    dataset = tf.data.Dataset.from_tensor_slices(stacked).repeat()
    batches = iter(dataset)
    model.prepare(*dataset.element_spec)
    model.make_train_function()

    def run() -> None:
        for _ in range(epoch.steps):
            model.train_function(batches)

    return run


def _fit(epoch: Epoch, rows: Callable[[], EncodedRows]) -> Callable[[], object]:
    model = epoch.model()
    return lambda: model.fit(epoch.batches(rows()), steps_per_epoch=epoch.steps, shuffle=False, verbose=0)


def _fit_from_arrays(epoch: Epoch) -> Callable[[], object]:
    return _fit(epoch, lambda: epoch.prepared.train)


def _fit_from_parquet(epoch: Epoch) -> Callable[[], object]:
    return _fit(epoch, epoch.decoded)


def _kind(what: str, make: Callable[[Epoch], Callable[[], object]]) -> RowKind:
    return RowKind(what, lambda epoch: Row(step=make(epoch)))


INPUT_ROWS: Mapping[str, RowKind] = {
    "bare-step": _kind("the train function on tensors in memory", _bare_step),
    "fit-from-arrays": _kind("fit, encoded arrays in memory", _fit_from_arrays),
    "fit-from-parquet": _kind("fit, reading and encoding the Parquet file in the same time", _fit_from_parquet),
}
