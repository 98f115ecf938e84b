"""Labels of binary tasks from a table's columns, on the rows that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gradalign.conditions import Condition
from gradalign.data.columns import check_column, plain
from gradalign.data.schema import Schema, TaskSpec
from gradalign.errors import UserError, nearest

_SHOWN = 6  # values of a label column that a message lists


def labels(
    table: pa.Table, schema: Schema | Mapping[str, TaskSpec], source: str = "the table"
) -> dict[str, np.ndarray]:
    """Return each task's label: 1 positive, 0 negative, NaN where the row has none.

    Args:
        table: of B rows, with every task's label column.
        schema: a schema, or its tasks.
        source: what to call the table in a message.

    Returns:
        Task name -> float32 array (B,).

    Raises:
        UserError: a label column, or the column of a `where`, is missing, or of a type that cannot be one.

    Example:

    >>> table = pa.table({"clicked": [1, 0, None]})
    >>> labels(table, {"click": TaskSpec("clicked", 1)})
    {'click': array([ 1.,  0., nan], dtype=float32)}
    >>> table = pa.table({"clicked": [1, 0, 1], "bought": [1, 0, 0]})
    >>> labels(table, {"conversion": TaskSpec("bought", 1, where="clicked == 1")})
    {'conversion': array([ 1., nan,  0.], dtype=float32)}
    """
    tasks = schema.tasks if isinstance(schema, Schema) else schema
    return {task: _label(table, task, spec, source) for task, spec in tasks.items()}


def check_labels(table: pa.Table, tasks: Mapping[str, TaskSpec], source: str = "the table") -> None:
    """Raise a UserError where a task cannot be learnt from `table`.

    Raises:
        UserError: a label column is missing, empty or holds one value only; a positive value, or the value of a
            `where`, never occurs; every labelled row is positive.

    Example:

    >>> check_labels(pa.table({"clicked": [1, 0]}), {"click": TaskSpec("clicked", 2)})
    Traceback (most recent call last):
    ...
    gradalign.errors.UserError: Task "click": the positive value 2 never occurs in column "clicked", which holds 0, 1.
    """
    for task, spec in tasks.items():
        if spec.condition is not None:
            _check_condition(table, task, spec.condition, source)
        values = _label(table, task, spec, source)
        column = plain(table[spec.label])
        present = pc.unique(column.filter(pa.array(~np.isnan(values)))).to_pylist()
        of_rows = f", where {spec.condition}," if spec.condition else ""
        where = f'Task "{task}": the label column "{spec.label}"{of_rows}'
        if not present:
            raise UserError(f"{where} is empty in {source}.")
        if len(present) == 1:
            raise UserError(f"{where} holds one value only, {present[0]!r}; a task needs positive and negative rows.")
        for value in spec.positive:
            if _typed(value, column.type) not in present:
                raise UserError(
                    f'Task "{task}": the positive value {_quoted(value)} never occurs in column "{spec.label}"'
                    f"{of_rows or ','} {_held(present, value)}"
                )
        if np.nanmin(values) == 1:
            raise UserError(f"{where} has positive values only; a task needs positive and negative rows.")


def _check_condition(table: pa.Table, task: str, condition: Condition, source: str) -> None:
    """Raise where the condition's value never occurs, which is a slip, be it for `==` or `!=`."""
    _meets(table, task, condition, source)
    column = plain(table[condition.column])
    if condition.value is None:
        if not _missing(column).to_numpy(zero_copy_only=False).any():
            raise UserError(
                f'Task "{task}": `where` asks for null, but every row of column "{condition.column}" has a value in '
                f"{source}."
            )
        return
    present = pc.unique(column.drop_null()).to_pylist()
    if _of_condition(condition.value, column.type) not in present:
        raise UserError(
            f'Task "{task}": the value "{condition.value}" of `where` never occurs in column "{condition.column}", '
            f"{_held(present, condition.value)}"
        )


def _held(present: list[Any], value: Any) -> str:
    held = {str(v): v for v in sorted(present, key=str)}
    shown = ", ".join(list(held)[:_SHOWN]) + (", ..." if len(held) > _SHOWN else "")
    return f"which holds {shown or 'nothing'}.{nearest(str(value), held)}"


def _meets(table: pa.Table, task: str, condition: Condition, source: str) -> np.ndarray:
    """Booleans (B,): the rows that meet the condition; a row without a value meets none but `== null`."""
    check_column(table, condition.column, f'Task "{task}": `where` names', source)
    column = plain(table[condition.column])
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(table.num_rows, condition.value is None and condition.is_equal)
    if not is_comparable(kind):
        raise UserError(
            f'Task "{task}": column "{condition.column}" of `where` is of type {kind}, which cannot be compared.'
        )
    if condition.value is None:
        missing = _missing(column).to_numpy(zero_copy_only=False)
        return missing if condition.is_equal else ~missing
    value = _of_condition(condition.value, kind)
    missing = _missing(column, "" if value == "" else None).to_numpy(zero_copy_only=False)
    equal = np.zeros(table.num_rows, bool)
    if value is not None:
        equal = pc.is_in(column, value_set=pa.array([value], kind)).to_numpy(zero_copy_only=False)
    return equal if condition.is_equal else ~equal & ~missing


def _of_condition(value: str, kind: pa.DataType) -> Any:
    """The text of a condition as a column of type `kind` holds it: "1.0" and "1" are one number."""
    found = _typed(value, kind)
    if found is None and not _is_text(kind):
        try:
            found = _typed(float(value), kind)
        except ValueError:
            return None
    return found


def _missing(column: pa.Array, value: str | None = None) -> pa.Array:
    """Booleans (B,): null, NaN and, unless `value` is that, the empty text."""
    missing = pc.is_null(column, nan_is_null=True)
    if _is_text(column.type) and value != "":
        missing = pc.or_(missing, pc.fill_null(pc.equal(column, ""), False))
    return missing


def is_comparable(kind: pa.DataType) -> bool:
    """Whether the values of an Arrow type can be labels, or be compared by a `where`."""
    return pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_text(kind)


def _label(table: pa.Table, task: str, spec: TaskSpec, source: str) -> np.ndarray:
    check_column(table, spec.label, f'Task "{task}" needs the label column', source)
    column = plain(table[spec.label])
    kind = column.type
    if not is_comparable(kind):
        if pa.types.is_null(kind):
            return np.full(table.num_rows, np.nan, "float32")
        raise UserError(f'Task "{task}": column "{spec.label}" is of type {kind}, which cannot be a label.')
    typed = [v for v in (_typed(value, kind) for value in spec.positive) if v is not None]
    positive = pc.is_in(column, value_set=pa.array(typed, kind))
    missing = _missing(column, "" if "" in typed else None).to_numpy(zero_copy_only=False)
    if spec.condition is not None:
        missing = missing | ~_meets(table, task, spec.condition, source)
    result = positive.to_numpy(zero_copy_only=False).astype("float32")
    result[missing] = np.nan
    return result


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """`value` as a column of type `kind` holds it (1, "1" and 1.0 are one number), or None where it cannot."""
    if _is_text(kind):
        return str(value)
    try:
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
        if isinstance(value, str) and not pa.types.is_floating(kind):
            return int(value)
        number = float(value)
        if pa.types.is_floating(kind):
            # As the column's own type rounds it: 0.1 is another number in float32.
            return pa.scalar(number, pa.float64()).cast(kind).as_py()
        exact = int(value)
        return exact if exact == number and _fits(exact, kind) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _fits(value: int, kind: pa.DataType) -> bool:
    limits = np.iinfo(str(kind))
    return bool(limits.min <= value <= limits.max)


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
