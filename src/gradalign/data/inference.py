"""Which column is what, where the config does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from gradalign.data.columns import check_column, is_list, raw_type
from gradalign.data.facts import ColumnFacts, RowsFacts, facts_of
from gradalign.data.labels import check_labels
from gradalign.data.schema import DEFAULTS, Schema, TaskSpec
from gradalign.errors import UserError, nearest

MAX_CODES = 64  # whole numbers with at most so many distinct values are codes
_IDENTIFIER = re.compile(r"(^|_)ids?$|[a-z]I[dD]$", re.ASCII)


def infer_schema(
    table: pa.Table | RowsFacts,
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
        table: the training table, or the summary of a file that is larger than memory.
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
    named = named_features(features)
    facts = facts_of(table, source)
    check_labels(facts.outcomes, tasks, source)
    for kind, columns in named.items():
        for column in columns:
            check_column(facts, column, f"`features.{kind}` names", source)
            if kind != "drop":
                _check_type(facts.column(column), kind, column, source)
    drop = list(named.pop("drop"))
    Schema(tasks, drop=tuple(drop), **named)  # refuses what `features` says wrongly before anything is inferred
    taken = outcome_columns(tasks) | {c for columns in named.values() for c in columns} | set(drop)
    reasons = {}
    for column in facts.column_names:
        if column not in taken:
            kind, reasons[column] = _infer(facts.column(column), column)
            if kind == "drop":
                drop.append(column)
            else:
                named[kind][column] = {}
    schema = Schema(tasks, drop=tuple(drop), reasons=reasons, **named)
    if not schema.columns:
        raise UserError(f"No column of {source} is left as a feature.")
    return schema


def outcome_columns(tasks: Mapping[str, TaskSpec]) -> set[str]:
    """Return the columns that labels are made of: the labels' own and those that a `where` looks at.

    >>> sorted(outcome_columns({"buy": TaskSpec("bought", where="clicked == 1")}))
    ['bought', 'clicked']
    """
    return {spec.label for spec in tasks.values()} | {s.condition.column for s in tasks.values() if s.condition}


def is_identifier(name: str) -> bool:
    """Whether a column is named like an identifier.

    >>> is_identifier("user_id"), is_identifier("paid")
    (True, False)
    """
    return _IDENTIFIER.search(name) is not None


def named_features(features: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the columns that `features` names: kind -> column -> options.

    >>> named_features({"drop": ["id"], "numeric": {"age": {"buckets": 4}}})
    {'drop': {'id': {}}, 'numeric': {'age': {'buckets': 4}}, 'categorical': {}, 'multi_valued': {}}
    """
    kinds = ("drop", *DEFAULTS)
    features = features or {}
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


def _check_type(facts: ColumnFacts, kind: str, column: str, source: str) -> None:
    arrow = facts.type
    raw = raw_type(arrow)
    fits = raw is not None and is_list(arrow) == (kind == "multi_valued")
    if not fits or (kind == "numeric" and raw == "string"):
        mend = "multi_valued" if is_list(arrow) else "categorical" if raw == "string" else "drop"
        raise UserError(
            f'Column "{column}" of {source} is of type {arrow} and cannot be {kind.replace("_", "-")}; '
            f"name it under `features.{mend}`."
        )
    if kind != "numeric" and raw in ("float32", "float64") and not facts.is_whole():
        raise UserError(
            f'Column "{column}" of {source} holds fractions and cannot be {kind.replace("_", "-")}; '
            f"name it under `features.{'drop' if is_list(arrow) else 'numeric'}`."
        )


def _infer(facts: ColumnFacts, name: str) -> tuple[str, str]:
    """(kind, reason in words)."""
    arrow = facts.type
    raw = raw_type(arrow)
    if facts.is_empty():
        return "drop", "left out: every value is missing"
    if raw is None:
        return "drop", f"left out: type {arrow} is not supported; turn it into a number or text to use it"
    if is_list(arrow):
        if raw in ("float32", "float64") and not facts.is_whole():
            return "drop", "left out: lists of fractions are not supported"
        return "multi_valued", "multi-valued: lists"
    if raw in ("float32", "float64"):
        return "numeric", "numeric, in buckets: fractions"
    if pa.types.is_boolean(arrow):
        return "categorical", "categorical: true or false"
    distinct = facts.distinct()
    values = "very many values" if distinct is None else f"{distinct:,} value{'s' if distinct != 1 else ''}"
    if raw == "string":
        return "categorical", f"categorical: text, {values}"
    if distinct is not None and distinct <= MAX_CODES:
        return "categorical", f"categorical: whole numbers, {values}"
    if is_identifier(name):
        return "categorical", f"categorical: named like an identifier, {values}"
    return "numeric", f"numeric, in buckets: whole numbers, {values}"
