"""Which column is what, where the config does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gradalign.data.columns import check_column, is_list, plain, raw_type
from gradalign.data.labels import check_labels
from gradalign.data.schema import DEFAULTS, Schema, TaskSpec
from gradalign.errors import UserError, nearest

MAX_CODES = 64  # whole numbers with at most so many distinct values are codes
_IDENTIFIER = re.compile(r"(^|_)ids?$|[a-z]I[dD]$", re.ASCII)


def infer_schema(
    table: pa.Table,
    tasks: Mapping[str, TaskSpec],
    features: Mapping[str, Any] | None = None,
    source: str = "the training table",
) -> Schema:
    """Return the schema of a training table: what `features` says, and for every other column what its values say.

    Text and truth values are categorical; whole numbers are categorical where they have at most 64 distinct values or
    are named like an identifier ("user_id"), else numeric; other numbers are numeric; lists are multi-valued. Label
    columns, and those that a task's `where` looks at, are no features. Dates, nested and empty columns are left out.
    `Schema.describe` tells what was inferred.

    Args:
        table: the training table.
        tasks: task name -> `TaskSpec`.
        features: any of "drop" (list of columns), "numeric", "categorical", "multi_valued" (column -> options, or a
            list of columns).
        source: what to call the table in a message.

    Raises:
        UserError: a missing column, a label that cannot be learnt or is among the features, a column of a type that
            cannot be what `features` says, an unknown key, or no feature at all.

    Example:

    >>> table = pa.table({"city": ["Oslo", "Rome"], "age": [31.0, 40.0], "click": [0, 1]})
    >>> schema = infer_schema(table, {"click": TaskSpec("click")})
    >>> schema.numeric, list(schema.categorical)
    ({'age': {'transform': 'bucket', 'buckets': 16}}, ['city'])
    """
    named = _named(features or {})
    check_labels(table, tasks, source)
    for kind, columns in named.items():
        for column in columns:
            check_column(table, column, f"`features.{kind}` names", source)
            if kind != "drop":
                _check_type(table, kind, column, source)
    drop = list(named.pop("drop"))
    Schema(tasks, drop=tuple(drop), **named)  # refuses what `features` says wrongly before anything is inferred
    outcomes = {spec.label for spec in tasks.values()} | {s.condition.column for s in tasks.values() if s.condition}
    taken = outcomes | {c for columns in named.values() for c in columns} | set(drop)
    reasons = {}
    for column in table.column_names:
        if column not in taken:
            kind, reasons[column] = _infer(table[column], column)
            if kind == "drop":
                drop.append(column)
            else:
                named[kind][column] = {}
    schema = Schema(tasks, drop=tuple(drop), reasons=reasons, **named)
    if not schema.columns:
        raise UserError(f"No column of {source} is left as a feature.")
    return schema


def _named(features: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The columns that `features` names: kind -> column -> options."""
    kinds = ("drop", *DEFAULTS)
    if not isinstance(features, Mapping):
        raise UserError(f"`features` must be a mapping with any of {', '.join(kinds)}, received {features!r}.")
    for key in features:
        if key not in kinds:
            raise UserError(f'`features` has no key "{key}"; it has {", ".join(kinds)}.{nearest(str(key), kinds)}')
    result: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        columns = features.get(kind) or {}
        if isinstance(columns, str) or not isinstance(columns, (Mapping, Iterable)):
            raise UserError(f"`features.{kind}` must name columns in a list, received {columns!r}.")
        result[kind] = dict(columns) if isinstance(columns, Mapping) else {c: {} for c in columns}
    return result


def _check_type(table: pa.Table, kind: str, column: str, source: str) -> None:
    arrow = table[column].type
    raw = raw_type(arrow)
    fits = raw is not None and is_list(arrow) == (kind == "multi_valued")
    if not fits or (kind == "numeric" and raw == "string"):
        mend = "multi_valued" if is_list(arrow) else "categorical" if raw == "string" else "drop"
        raise UserError(
            f'Column "{column}" of {source} is of type {arrow} and cannot be {kind.replace("_", "-")}; '
            f"name it under `features.{mend}`."
        )
    if kind != "numeric" and raw in ("float32", "float64") and not _whole(table[column]):
        raise UserError(
            f'Column "{column}" of {source} holds fractions and cannot be {kind.replace("_", "-")}; '
            f"name it under `features.{'drop' if is_list(arrow) else 'numeric'}`."
        )


def _whole(column: pa.ChunkedArray) -> bool:
    values = plain(pc.list_flatten(column) if is_list(column.type) else column)
    values = values.cast(pa.float64()).drop_null()
    values = values.filter(pc.is_finite(values))
    return bool(pc.all(pc.equal(pc.round(values), values), min_count=0).as_py())


def _infer(column: pa.ChunkedArray, name: str) -> tuple[str, str]:
    """(kind, reason in words)."""
    arrow = column.type
    raw = raw_type(arrow)
    if column.null_count == len(column):
        return "drop", "left out: every value is missing"
    if raw is None:
        return "drop", f"left out: type {arrow} is not supported; turn it into a number or text to use it"
    if is_list(arrow):
        if raw in ("float32", "float64") and not _whole(column):
            return "drop", "left out: lists of fractions are not supported"
        return "multi_valued", "multi-valued: lists"
    if raw in ("float32", "float64"):
        return "numeric", "numeric, in buckets: fractions"
    if pa.types.is_boolean(arrow):
        return "categorical", "categorical: true or false"
    distinct = pc.count_distinct(plain(column), mode="only_valid").as_py()
    values = f"{distinct:,} value{'s' if distinct != 1 else ''}"
    if raw == "string":
        return "categorical", f"categorical: text, {values}"
    if distinct <= MAX_CODES:
        return "categorical", f"categorical: whole numbers, {values}"
    if _IDENTIFIER.search(name):
        return "categorical", f"categorical: named like an identifier, {values}"
    return "numeric", f"numeric, in buckets: whole numbers, {values}"
