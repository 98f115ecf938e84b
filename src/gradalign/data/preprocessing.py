"""Raw columns to model inputs: learnt from the training table, saved as text, run as Keras layers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from gradalign.data.columns import check_column, is_list, raw_lists, raw_tensor, raw_type
from gradalign.data.encode_column import encode_lists, encode_values
from gradalign.data.encoders import UNKNOWN_ID, BucketIds, IsMissing, Standardize, VocabularyIds
from gradalign.data.facts import ColumnFacts, RowsFacts, facts_of
from gradalign.data.schema import Schema
from gradalign.errors import GradAlignWarning, UserError
from gradalign.layers.fields import Categorical, Field, MultiValued, Numeric, is_input_name

_FORMAT = 1
_ENOUGH = 100  # rows from which a column without any known value is worth a warning


@dataclasses.dataclass(frozen=True)
class LearntColumn:
    """What was learnt from one training column.

    Args:
        name: of the column.
        field: the column's name as input of a model: the same, or one made from it where no served model could have an
            input of that name ("native country" -> "native_country").
        kind: "categorical", "multi_valued", "bucket" or "project".
        raw: its raw type (`gradalign.data.columns.RAW_TYPES`).
        learnt: the arguments of its encoder; for "project" also `missing`, the name of the field that says whether the
            number is missing, or None where none is missing in training.
    """

    name: str
    field: str
    kind: str
    raw: str
    learnt: Mapping[str, Any]

    def encoders(self, layer_name: str) -> dict[str, tuple[keras.layers.Layer, Field]]:
        """Return field name -> (layer from the raw column, field); one field, or two where a number can be missing."""
        learnt = dict(self.learnt)
        if self.kind == "bucket":
            buckets = BucketIds(raw=self.raw, name=layer_name, **learnt)
            return {self.field: (buckets, Categorical(buckets.size))}
        if self.kind == "project":
            missing = learnt.pop("missing")
            # The default type, not the mixed-precision policy's: these numbers are inputs.
            numbers = Standardize(raw=self.raw, name=layer_name, dtype=keras.config.floatx(), **learnt)
            result: dict[str, tuple[keras.layers.Layer, Field]] = {self.field: (numbers, Numeric())}
            if missing:
                result[missing] = (IsMissing(self.raw, name=f"{layer_name}_is_missing"), Categorical(2))
            return result
        ids = VocabularyIds(raw=self.raw, name=layer_name, **learnt)
        return {self.field: (ids, MultiValued(ids.size) if self.kind == "multi_valued" else Categorical(ids.size))}


class Preprocessing:
    """The way from raw columns to the inputs of a model such as `gradalign.architectures.shared_private`.

    Ids: 0 is missing (in a list: padding), 1 unknown; a training value that is rarer than the schema's `min_count`
    counts as unknown, so that the bucket of unknown values is trained. Buckets of numbers start at 1.

    Raw columns have the training table's own types; there "missing" is written as "" for text, as the least value of
    the type for whole numbers, and as NaN for other numbers, and a list is padded with the same.

    Args:
        columns: what was learnt, in the order of the fields; `fit` learns it.

    Example:

    >>> from gradalign.data import TaskSpec
    >>> table = pa.table({"city": ["Oslo", "Rome", "Rome"], "click": [0, 1, 1]})
    >>> schema = Schema({"click": TaskSpec("click")}, categorical={"city": {"min_count": 1}})
    >>> preprocessing = Preprocessing.fit(table, schema)
    >>> preprocessing.encode(pa.table({"city": ["Rome", "Bonn", None]}))
    {'city': array([2, 1, 0], dtype=int32)}
    >>> preprocessing.fields
    {'city': Categorical(size=4)}
    """

    def __init__(self, columns: Sequence[LearntColumn]) -> None:
        self.columns = tuple(columns)

    @classmethod
    def fit(cls, table: pa.Table | RowsFacts, schema: Schema, source: str = "the training table") -> Preprocessing:
        """Learn vocabularies, bucket edges and means from `table`.

        Args:
            table: the training table, or the summary of a file that is larger than memory, and no other: nothing of a
                test file may be learnt.
            schema: which columns are features, and how. The fields come in the order of the table's columns.
            source: what to call the table in a message.

        Raises:
            UserError: a missing column, or one of a type that does not fit its part in the schema.
        """
        facts = facts_of(table, source)
        for column in schema.columns:
            check_column(facts, column, "The schema needs column", source)
        ordered = [c for c in facts.column_names if c in set(schema.columns)]
        names = _field_names(ordered)
        return cls([_learn(facts.column(name), name, names, schema, source) for name in ordered])

    @functools.cached_property
    def fields(self) -> dict[str, Field]:
        """Field name -> field, as `shared_private` takes them."""
        return {name: field for column in self._encoders.values() for name, (_, field) in column.items()}

    @functools.cached_property
    def model(self) -> keras.Model:
        """A functional model without weights: {field: raw tensor} -> {field: ids (B,) or (B, L), or numbers (B,)}."""
        inputs, outputs = {}, {}
        for column in self.columns:
            shape = (None,) if column.kind == "multi_valued" else ()
            inputs[column.field] = keras.Input(shape=shape, dtype=column.raw, name=column.field)
            for field, (layer, _) in self._encoders[column.field].items():
                outputs[field] = layer(inputs[column.field])
        return keras.Model(inputs, outputs, name="preprocessing")

    @functools.cached_property
    def _encoders(self) -> dict[str, dict[str, tuple[keras.layers.Layer, Field]]]:
        taken = {column.field for column in self.columns}
        encoders = {}
        for column in self.columns:
            layer_name = _free(f"encode_{column.field}", taken)
            taken.add(layer_name)
            encoders[column.field] = column.encoders(layer_name)
        return encoders

    @property
    def types(self) -> dict[str, str]:
        """Column -> "string" for the columns of text, which `read_table` must not read from a CSV as numbers.

        A column of codes such as "01" would else come back as the number 1, which is another text.
        """
        return {c.name: "string" for c in self.columns if c.raw == "string" and c.kind != "multi_valued"}

    def raw(self, table: pa.Table, source: str = "the table") -> dict[str, tf.Tensor]:
        """Return the table's columns as the raw tensors that `model` (and a served model) takes.

        Args:
            table: of B rows; columns that are no features are ignored.
            source: what to call the table in a message.

        Returns:
            Field -> tensor (B,), or (B, L) for a multi-valued one.

        Raises:
            UserError: a missing column, or one that does not convert to the training column's type.
        """
        result = {}
        for column in self.columns:
            values = self._values(table, column, source)
            if column.kind == "multi_valued":
                result[column.field] = raw_lists(values, column.raw, column.name, column.learnt["max_length"], source)
            else:
                result[column.field] = raw_tensor(values, column.raw, column.name, source)
        return result

    @staticmethod
    def _values(table: pa.Table, column: LearntColumn, source: str) -> pa.ChunkedArray:
        check_column(table, column.name, "The model needs column", source)
        values = table[column.name]
        if is_list(values.type) and column.kind != "multi_valued":
            raise UserError(
                f'Column "{column.name}" of {source} holds lists, but held one value a row in the training data.'
            )
        return values

    def encode(self, table: pa.Table, source: str = "the table") -> dict[str, np.ndarray]:
        """Return the inputs of a model for every row of `table`.

        Args:
            table: of B rows.
            source: what to call the table in a message.

        Returns:
            Field -> int32 ids (B,) or (B, L), or numbers (B,) of Keras's float type.

        Raises:
            UserError: as `raw` does.

        Warns:
            GradAlignWarning: a column of 100 rows or more without one value that was seen in training.
        """
        unseen = UnseenColumns(self)
        encoded = self.encode_part(table, source, unseen)
        for sentence in unseen.sentences(source):
            warnings.warn(sentence, GradAlignWarning, stacklevel=2)
        return encoded

    def encode_part(
        self, table: pa.Table, source: str, unseen: UnseenColumns, widths: Mapping[str, int] | None = None
    ) -> dict[str, np.ndarray]:
        """Return what `encode` does for one part of the rows, and leave the warnings to `unseen`.

        Args:
            table: of B rows.
            source: what to call all of the rows in a message.
            unseen: is shown the part.
            widths: of the rows of each multi-valued column; by default its longest row's.
        """
        encoded: dict[str, np.ndarray] = {}
        with tf.device("CPU"):
            for column in self.columns:
                values = self._values(table, column, source)
                for field, (layer, _) in self._encoders[column.field].items():
                    if column.kind == "multi_valued":
                        longest, width = column.learnt["max_length"], (widths or {}).get(column.name)
                        encoded[field] = encode_lists(layer, values, column.name, longest, width, source)
                    else:
                        encoded[field] = encode_values(layer, values, column.name, source)
        unseen.see(table, encoded)
        return encoded

    def to_json(self) -> list[dict[str, Any]]:
        """Return what was learnt, as `from_json` takes it."""
        return [dataclasses.asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, content: Sequence[Mapping[str, Any]]) -> Preprocessing:
        """Return the preprocessing that `to_json` described."""
        return cls([LearntColumn(**column) for column in content])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learnt to a JSON file; an older one is replaced whole or not at all.

        Args:
            path: of the file; its folder exists.
        """
        content = {"format": _FORMAT, "columns": self.to_json()}
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps(content, ensure_ascii=False, allow_nan=False), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Preprocessing:
        """Return the preprocessing that `save` wrote to `path`.

        Raises:
            UserError: there is no such file, or it was not written by `save`.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise UserError(f"{path} has format {content['format']!r}; this version reads {_FORMAT}.")
            return cls.from_json(content["columns"])
        except FileNotFoundError as error:
            raise UserError(f"There is no file {path}.") from error
        except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a file of learnt preprocessing, or it is damaged.") from error


class UnseenColumns:
    """Looks for columns of which no value was seen in training, over all parts of the rows.

    Args:
        preprocessing: that encodes the parts.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._columns = {c.name: c.field for c in preprocessing.columns if c.kind == "categorical"}
        self._first: dict[str, Any] = {}
        self._rows = 0

    def see(self, table: pa.Table, encoded: Mapping[str, np.ndarray]) -> None:
        """Look at a part."""
        if not table.num_rows:
            return
        for name in list(self._columns):
            if not np.all(encoded[self._columns[name]] == UNKNOWN_ID):
                del self._columns[name]
            else:
                self._first.setdefault(name, table[name][0].as_py())
        self._rows += table.num_rows

    def sentences(self, source: str) -> list[str]:
        """Return a warning for each such column."""
        if self._rows < _ENOUGH:
            return []
        return [
            f'No value of column "{name}" of {source} was seen in training (the first is {self._first[name]!r}); '
            "check that it is written as in the training table."
            for name in self._columns
        ]


def _learn(
    facts: ColumnFacts,
    name: str,
    fields: Mapping[str, str],
    schema: Schema,
    source: str,
) -> LearntColumn:
    kind = schema.kind(name)
    options = getattr(schema, kind)[name]
    raw = raw_type(facts.type)
    if raw is None or is_list(facts.type) != (kind == "multi_valued") or (kind == "numeric" and raw == "string"):
        raise UserError(f'Column "{name}" of {source} is of type {facts.type} and cannot be {kind.replace("_", "-")}.')
    if kind != "numeric":
        words = facts.vocabulary(raw, options["min_count"], options["max_size"])
        return LearntColumn(
            name, fields[name], kind, raw, {"vocabulary": words, "max_length": options.get("max_length")}
        )
    if options["transform"] == "bucket":
        return LearntColumn(name, fields[name], "bucket", raw, {"edges": facts.edges(raw, options["buckets"])})
    learnt = facts.standardisation(raw)
    if learnt is None:
        raise UserError(f'Column "{name}" of {source} holds no number to standardise; name it under `features.drop`.')
    missing = _free(f"{fields[name]}_is_missing", set(fields.values())) if facts.has_missing(raw) else None
    return LearntColumn(name, fields[name], "project", raw, {**learnt, "missing": missing})


def _field_names(columns: Sequence[str]) -> dict[str, str]:
    """Column -> the name of its input: its own where a served model can have it."""
    names = {column: column for column in columns if is_input_name(column)}
    for i, column in enumerate(columns):
        if column not in names:
            words = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")
            name = words if is_input_name(words) else f"column_{words or i}"
            names[column] = _free(name, set(names.values()))
    return names


def _free(name: str, taken: set[str]) -> str:
    """`name`, with underscores at its end where it is taken."""
    while name in taken:
        name += "_"
    return name
