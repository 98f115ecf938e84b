"""Which rows a case has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradalign.benchmarks.cases import Case
from gradalign.benchmarks.row import RowKind

__all__ = ["problem_for", "rows_of"]


def rows_of(case: Case) -> Mapping[str, RowKind]:
    """Return the rows of a case that is timed in this process, by name."""
    if case.kind == "tables":
        from gradalign.benchmarks.table_rows import TABLE_ROWS

        return TABLE_ROWS
    if case.kind == "input":
        from gradalign.benchmarks.input_rows import INPUT_ROWS

        return INPUT_ROWS
    from gradalign.benchmarks.rows import STEP_ROWS

    return STEP_ROWS


def problem_for(case: Case) -> Any:
    """Return what the rows of a case are made from."""
    if case.kind == "input":
        from gradalign.benchmarks.input_rows import Epoch

        return Epoch(case.batch, case.row_limit)
    from gradalign.benchmarks.problem import problem_of

    return problem_of(case)
