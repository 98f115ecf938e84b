"""From a config's files to encoded rows: what is learnt from the training part, then every part through it.

In memory, both go through the user's cache. Files that need more memory are read in parts: once to learn from, once to
write their encoded rows to a file, from which training reads blocks. `gradalign.training.batches` has the rest.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gradalign.data import (
    EncodedRows,
    Part,
    Preprocessing,
    Schema,
    Summary,
    TaskSpec,
    UnseenColumns,
    infer_schema,
    labels,
)
from gradalign.data.cache import digest
from gradalign.data.columns import check_column, is_list
from gradalign.data.encoded import DamagedRowsError, read_rows, write_rows
from gradalign.data.inference import outcome_columns
from gradalign.data.layout import Layout
from gradalign.errors import GradAlignWarning, UserError
from gradalign.training.config import Config, FeaturesConfig
from gradalign.training.data_config import DataConfig
from gradalign.training.rows import Tables


@dataclasses.dataclass(frozen=True)
class Learnt:
    """What the training part taught; `config` has every column under `features`, so that it needs no inference."""

    config: Config
    schema: Schema
    preprocessing: Preprocessing


@dataclasses.dataclass(frozen=True)
class Prepared(Learnt):
    """The rows of a run, encoded."""

    train: EncodedRows
    validation: EncodedRows | None
    test: EncodedRows


def tasks_of(config: Config) -> dict[str, TaskSpec]:
    """The config's tasks as `gradalign.data` takes them."""
    return {task: TaskSpec(spec.label, tuple(spec.positive), spec.where) for task, spec in config.tasks.items()}


def sources(data: DataConfig) -> dict[str, str]:
    """What messages call each part."""
    is_file = data.validation is not None and data.validation_fraction is None
    return {
        "train": data.train or "the training data",
        "validation": str(data.validation) if is_file else "the validation part",
        "test": data.test or "the test data",
    }


def learn(config: Config, tables: Tables, preprocessing: Preprocessing | None = None) -> Learnt:
    """Fit the preprocessing on the training part.

    Args:
        config: of the run.
        tables: its parts.
        preprocessing: what was learnt already; `config` is then that of a run, with every column under `features`.

    Raises:
        UserError: the training part does not fit the config: a column is missing, a label has one value only, and so
            on.
    """
    tasks = tasks_of(config)
    features = config.features.model_dump(exclude_none=True)
    group = config.data.group
    if group is not None and not any(group in columns for columns in features.values()):
        features["drop"] = [*features["drop"], group]  # it says whom a row is of; a feature only where it is named one
    if preprocessing is not None:
        return Learnt(_resolved(config, tables, features), Schema(tasks, **features), preprocessing)
    source, part = sources(config.data)["train"], tables.train
    cache = None if tables.is_streamed else tables.cache
    key = "" if cache is None else digest(part.identity, _as_json(tasks), features)
    known = None if cache is None else cache.learnt(key)
    if known is not None:
        schema = Schema(tasks, reasons=known["reasons"], **known["features"])
        return Learnt(
            _resolved(config, tables, schema.features()), schema, Preprocessing.from_json(known["preprocessing"])
        )
    if tables.is_streamed and part.file.is_parquet:
        rows: pa.Table | Summary = Summary(part.tables(), part.file.schema, tasks, features, source)
    else:
        rows = part.table()
    if group is not None:
        check_column(rows, group, "`data.group` names", source)
        check_column(tables.test.file.schema.empty_table(), group, "`data.group` names", sources(config.data)["test"])
    schema = infer_schema(rows, tasks, features, source)
    fitted = Preprocessing.fit(rows, schema, source)
    if cache is not None:
        learnt = {"features": schema.features(), "reasons": schema.reasons, "preprocessing": fitted.to_json()}
        cache.keep_learnt(key, learnt)
    return Learnt(_resolved(config, tables, schema.features()), schema, fitted)


def _resolved(config: Config, tables: Tables, features: Mapping[str, object]) -> Config:
    """The config with all columns, and with the limit that decided whether rows are read in parts."""
    data, limit = config.data, tables.memory_limit
    if data.memory_gb is None and limit is not None:
        data = data.model_copy(update={"memory_gb": limit / 2**30})
    return config.model_copy(update={"features": FeaturesConfig.model_validate(features), "data": data})


def _as_json(tasks: Mapping[str, TaskSpec]) -> dict[str, object]:
    return {task: dataclasses.asdict(spec) for task, spec in tasks.items()}


def encode_all(learnt: Learnt, tables: Tables, folder: Path | None = None) -> Prepared:
    """Encode all parts.

    Args:
        learnt: what the training part taught.
        tables: the parts.
        folder: where to write the rows of files that are read in parts; what is there already is used. By default a
            temporary folder, which goes with what is returned.

    Raises:
        UserError: a part does not fit what was learnt, or cannot be written.
    """
    kept = Path(tempfile.mkdtemp(prefix="gradalign-")) if tables.is_streamed and folder is None else None
    encoder = Encoder(learnt.config, learnt.preprocessing, tables, folder or kept)
    try:
        train = encoder.encode(tables.train, "train")
        validation = None if tables.validation is None else encoder.encode(tables.validation, "validation")
        test = encoder.encode(tables.test, "test")
        prepared = Prepared(learnt.config, learnt.schema, learnt.preprocessing, train, validation, test)
    except BaseException:
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
        raise
    if kept is not None:
        weakref.finalize(prepared, shutil.rmtree, kept, True)
    return prepared


class Encoder:
    """Encodes parts of a run's data.

    Args:
        config: of the run.
        preprocessing: fitted on the training part.
        tables: the parts; they say whether files are read in parts, and where the cache is.
        folder: where the rows of files that are read in parts go.
    """

    def __init__(self, config: Config, preprocessing: Preprocessing, tables: Tables, folder: Path | None) -> None:
        self._preprocessing, self._folder = preprocessing, folder
        self._is_streamed, self._cache = tables.is_streamed, tables.cache
        self._tasks = tasks_of(config)
        self._sources = sources(config.data)

    def encode(self, part: Part, name: str, source: str | None = None) -> EncodedRows:
        """Return the rows of a part; `name` is "train", "validation" or "test"."""
        source = source or self._sources[name]
        key = digest(
            part.identity,
            _as_json(self._tasks),
            self._preprocessing.to_json(),
            keras.config.floatx(),
            source,
        )
        if self._is_streamed and part.file.is_parquet:
            rows = self._through_file(part, source, key, name)
        else:
            rows = self._in_memory(part, source, key)
        for sentence in rows.warnings:
            warnings.warn(sentence, GradAlignWarning, stacklevel=4)
        return rows

    def check_columns(self, part: Part, name: str) -> None:
        """Raise a UserError where the first rows of a part already show that it does not fit."""
        if part.file.is_parquet:
            for table in part.tables(rows=1):
                self._encode(table, self._sources[name], UnseenColumns(self._preprocessing))
                return

    def _encode(
        self, table: pa.Table, source: str, unseen: UnseenColumns, widths: Mapping[str, int] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        x = self._preprocessing.encode_part(table, source, unseen, widths)
        return x, labels(table, self._tasks, source)

    def _in_memory(self, part: Part, source: str, key: str) -> EncodedRows:
        rows = None if self._cache is None else self._cache.rows(key)
        if rows is None:
            unseen = UnseenColumns(self._preprocessing)
            x, y = self._encode(part.table(), source, unseen)
            rows = EncodedRows.of(x, y, unseen.sentences(source))
            if self._cache is not None:
                self._cache.keep_rows(key, rows)
        return rows

    def _through_file(self, part: Part, source: str, key: str, name: str) -> EncodedRows:
        assert self._folder is not None
        folder = self._folder / name
        try:
            return read_rows(folder, key, in_memory=False)
        except DamagedRowsError:
            pass  # not there yet
        widths = self._widths(part)
        unseen = UnseenColumns(self._preprocessing)
        layout = Layout.of(*self._encode(part.file.schema.empty_table(), source, unseen, widths))
        needed = {column.name for column in self._preprocessing.columns} | outcome_columns(self._tasks)
        sentences: list[str] = []

        def records() -> Iterator[np.ndarray]:
            for table in part.tables([name for name in part.file.schema.names if name in needed]):
                yield layout.pack(*self._encode(table, source, unseen, widths))
            sentences.extend(unseen.sentences(source))

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_rows(folder, layout, records(), key, sentences)
            return read_rows(folder, key, in_memory=False)
        except (OSError, DamagedRowsError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f'The encoded rows of {source} cannot be written to "{folder}" ({reason}); they take '
                f"{part.rows * layout.width / 2**30:.2f} GB."
            ) from None

    def _widths(self, part: Part) -> dict[str, int]:
        """The longest row of each multi-valued column, at most its `max_length`."""
        longest = {c.name: c.learnt["max_length"] for c in self._preprocessing.columns if c.kind == "multi_valued"}
        widths = dict.fromkeys(longest, 1)
        lists = [
            name for name in longest if name in part.file.schema.names and is_list(part.file.schema.field(name).type)
        ]
        for table in part.tables(lists) if lists else ():
            for name in lists:
                found = pc.max(pc.list_value_length(table[name])).as_py() or 0
                widths[name] = min(max(widths[name], found), longest[name])
        return widths
