"""Rows of the case `input`: an epoch of the bundled config, from its Parquet file and from tensors in memory."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from gradalign.benchmarks.row import Row, RowKind
from gradalign.data import EncodedRows
from gradalign.data.cache import Cache
from gradalign.multi_task_model import MultiTaskModel
from gradalign.training.batches import shuffled_batches, steps_per_epoch
from gradalign.training.build import build_model, prepare
from gradalign.training.config_file import load_config
from gradalign.training.encoding import Encoder, Prepared
from gradalign.training.rows import read_tables

__all__ = ["INPUT_ROWS", "Epoch"]


class Epoch:
    """The bundled config and its training part, a Parquet file; encoded as well.

    Args:
        batch: rows of a batch.
        row_limit: at most this many rows; `None` for all.
    """

    def __init__(self, batch: int, row_limit: int | None) -> None:
        changes = [f"training.batch_size={batch}", "data.cache=false"]
        config = load_config("census-income", changes + ([f"data.limit={row_limit}"] if row_limit else []))
        self.prepared: Prepared = prepare(config, read_tables(config.data))
        self.rows, self.batch = len(self.prepared.train), batch
        self.steps = steps_per_epoch(self.rows, batch)
        self._folder = tempfile.TemporaryDirectory(prefix="gradalign-bench-")

    def model(self) -> MultiTaskModel:
        """Return the config's model, compiled."""
        return build_model(self.prepared.config, self.prepared.preprocessing, self.steps)

    def encoded(self, *, cached: bool) -> EncodedRows:
        """Read and encode the training part as `gradalign train` does, or take it from a cache where it is there."""
        config = self.prepared.config
        tables = read_tables(config.data)
        if cached:
            tables = dataclasses.replace(tables, cache=Cache(Path(self._folder.name)))
        return Encoder(config, self.prepared.preprocessing, tables, None).encode(tables.train, "train")

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


def _fit_from_memory(epoch: Epoch) -> Callable[[], object]:
    return _fit(epoch, lambda: epoch.prepared.train)


def _fit_from_cache(epoch: Epoch) -> Callable[[], object]:
    return _fit(epoch, lambda: epoch.encoded(cached=True))


def _fit_from_parquet(epoch: Epoch) -> Callable[[], object]:
    return _fit(epoch, lambda: epoch.encoded(cached=False))


def _kind(what: str, make: Callable[[Epoch], Callable[[], object]]) -> RowKind:
    return RowKind(what, lambda epoch: Row(step=make(epoch)))


INPUT_ROWS: Mapping[str, RowKind] = {
    "bare-step": _kind("the train function on tensors in memory", _bare_step),
    "fit-from-memory": _kind("fit, rows encoded before", _fit_from_memory),
    "fit-from-cache": _kind("fit, reading encoded rows from the cache in the same time", _fit_from_cache),
    "fit-from-parquet": _kind("fit, reading and encoding the Parquet file in the same time", _fit_from_parquet),
}
