"""What is learnt from a file that is larger than memory, in one pass over its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gradalign.data.columns import check_column, is_list, plain, raw_type, typed
from gradalign.data.counting import NumberCounts, ValueCounts
from gradalign.data.facts import ColumnFacts, missing, values_of, whole
from gradalign.data.inference import is_identifier, named_features, outcome_columns
from gradalign.data.labels import is_comparable
from gradalign.data.learning import edges_of_counts, finite, most_frequent
from gradalign.data.schema import TaskSpec


class SummaryColumn:
    """The facts of a column that arrives part by part.

    Counts of values are exact. Numbers in buckets are exact up to 262,144 distinct ones, see `NumberCounts`.

    Args:
        kind: of the column, where `features` names it, else None.
        field: its name and type.
        source: what to call all of the rows in a message.
    """

    def __init__(self, field: pa.Field, kind: str | None, source: str) -> None:
        self.type = field.type
        self._name, self._source = field.name, source
        self._raw = raw_type(field.type)
        self._is_fraction = self._raw in ("float32", "float64")
        self._nulls = self._rows = 0
        self._has_missing = self._has_empty_text = False
        self._is_whole = True
        in_words = self._raw == "string" or pa.types.is_boolean(field.type) or is_list(field.type)
        may_be_number = kind in (None, "numeric") and not in_words
        may_be_words = kind != "numeric" and not (kind is None and self._is_fraction and not is_list(field.type))
        is_code = kind is None and may_be_number and may_be_words and not is_identifier(field.name)
        self._numbers = (
            NumberCounts() if may_be_number and (self._is_fraction or is_code or kind == "numeric") else None
        )
        self._words = ValueCounts() if may_be_words else None
        # Whole numbers that nothing names are codes while they are few; else the counts of each are not needed.
        self._most_words = 1 << 18 if is_code else None

    def add(self, column: pa.ChunkedArray) -> None:
        """Take a part's values in."""
        self._rows += len(column)
        self._nulls += column.null_count
        if self._raw is None:
            return
        if self._is_fraction and self._words is not None:
            self._is_whole = self._is_whole and whole(column)
        if self._words is not None and self._is_whole:
            self._words.add(values_of(column, self._raw, self._name, self._source))
            if self._raw == "string" and not is_list(self.type):
                is_empty = pc.any(pc.equal(plain(column), "")).as_py()
                self._has_empty_text = self._has_empty_text or bool(is_empty)
            if self._most_words is not None and len(self._words.table()) > self._most_words:
                self._words = None
        if self._numbers is not None:
            values = typed(column, self._raw, self._name, self._source)
            self._has_missing = self._has_missing or missing(values)
            self._numbers.add(finite(values))

    def is_empty(self) -> bool:
        """Whether every value is null."""
        return self._nulls == self._rows

    def is_whole(self) -> bool:
        """Whether every finite number is whole."""
        return self._is_whole

    def distinct(self) -> int | None:
        """Number of distinct values; None where there are too many to count."""
        return None if self._words is None else len(self._words.table()) + self._has_empty_text

    def vocabulary(self, raw: str, min_count: int, max_size: int | None) -> list[Any]:
        """The most frequent values first."""
        assert self._words is not None, f"{self._name} was not counted"
        return most_frequent(self._words.table(), min_count, max_size)

    def edges(self, raw: str, buckets: int) -> list[float]:
        """Edges of ranges of equal numbers of rows."""
        assert self._numbers is not None, f"{self._name} was not counted"
        return edges_of_counts(*self._numbers.distinct_and_counts(), buckets)

    def standardisation(self, raw: str) -> dict[str, float] | None:
        """Mean, scale and range; None without any number."""
        assert self._numbers is not None, f"{self._name} was not counted"
        return self._numbers.standardisation()

    def has_missing(self, raw: str) -> bool:
        """Whether a row has no number."""
        return self._has_missing


class Summary:
    """The facts of rows that arrive part by part, for `infer_schema` and `Preprocessing.fit`.

    Args:
        parts: tables of one schema; drawn once.
        schema: theirs.
        tasks: task name -> `TaskSpec`.
        features: as `infer_schema` takes it; it says what must be counted of a column.
        source: what to call all of the rows in a message.

    Raises:
        UserError: a part that cannot be read, a column that is missing or does not convert.

    Example:

    >>> table = pa.table({"city": ["Oslo", "Rome", "Rome", None], "click": [0, 1, 1, 0]})
    >>> parts = [table.slice(0, 2), table.slice(2)]
    >>> summary = Summary(parts, table.schema, {"click": TaskSpec("click")})
    >>> summary.column("city").vocabulary("string", 1, None)
    ['Rome', 'Oslo']
    """

    def __init__(
        self,
        parts: Iterable[pa.Table],
        schema: pa.Schema,
        tasks: Mapping[str, TaskSpec],
        features: Mapping[str, Any] | None = None,
        source: str = "the training file",
    ) -> None:
        self.column_names = list(schema.names)
        kinds = {name: kind for kind, columns in named_features(features).items() for name in columns}
        empty = schema.empty_table()
        for name, kind in kinds.items():
            check_column(empty, name, f"`features.{kind}` names", source)
        needed = sorted(outcome_columns(tasks))
        for task, spec in tasks.items():
            check_column(empty, spec.label, f'Task "{task}" needs the label column', source)
            if spec.condition is not None:
                check_column(empty, spec.condition.column, f'Task "{task}": `where` names', source)
        self._columns = {
            field.name: SummaryColumn(field, kinds.get(field.name), source)
            for field in schema
            if field.name not in needed and kinds.get(field.name) != "drop"
        }
        found: pa.Table | None = None
        for part in parts:
            for name, column in self._columns.items():
                column.add(part[name])
            outcomes = pa.table({name: plain(part[name]) for name in needed})
            if not all(is_comparable(kind) for kind in outcomes.schema.types):
                found = outcomes  # no labels, which is said of these rows as well as of all
                continue
            joined = outcomes if found is None else pa.concat_tables([found, outcomes])
            found = joined.group_by(needed).aggregate([]).select(needed)
        self.outcomes = found if found is not None else empty.select(needed)

    def column(self, name: str) -> ColumnFacts:
        """Return the facts of a column."""
        return self._columns[name]
