"""One way of training a case's model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Row", "RowKind"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that was built.

    Args:
        step: trains one step on the next batch.
        flops: counts the matrix products of one step; `None` where a step is more than that.
        weights: returns every weight by its name, the same in all rows.
        seldom: what comes on top of the steps now and then; a step's seconds get their share of it.
        every: of how many steps it comes with one.
    """

    step: Callable[[], object]
    flops: Callable[[], float] | None = None
    weights: Callable[[], dict[str, np.ndarray]] = dict
    seldom: Callable[[], object] | None = None
    every: int = 1

    def warm_up(self) -> None:
        """Do everything once, which traces and compiles it."""
        self.step()
        if self.seldom is not None:
            self.seldom()


@dataclasses.dataclass(frozen=True)
class RowKind:
    """A row of the table, not built yet.

    Args:
        what: one line for readers.
        make: builds the row for a problem.
        missing: says in words why the row cannot be measured here, or `None`.
    """

    what: str
    make: Callable[[Any], Row]
    missing: Callable[[], str | None] = lambda: None
