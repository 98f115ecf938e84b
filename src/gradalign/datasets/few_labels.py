"""A data set in which a task has few labels."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gradalign.errors import UserError

__all__ = ["with_few_labels"]


def with_few_labels(table: pa.Table, labelled_rows: Mapping[str, int], seed: int) -> pa.Table:
    """Return a table whose label columns are null but for some rows, drawn at random from those that have the label.

    Args:
        table: of B rows.
        labelled_rows: {label column: number of rows that keep the label}; other columns stay as they are.
        seed: of the draw. The rows of a smaller number are among those of a larger one; columns are drawn one by one.

    Raises:
        UserError: a number is not a whole one from 1 on, or the column has fewer labels.

    Example:
        >>> table = pa.table({"buy": [1, 0, None, 1], "click": [1, 1, 1, 0]})
        >>> few = with_few_labels(table, {"buy": 2}, seed=0)
        >>> few["buy"].null_count, few["click"].to_pylist()
        (2, [1, 1, 1, 0])
    """
    for column, count in labelled_rows.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f'labelled_rows of "{column}" is a whole number of rows, 1 or more; received {count!r}.')
        values = table[column]
        there = np.flatnonzero(pc.is_valid(values).to_numpy())
        if len(there) < count:
            raise UserError(
                f'labelled_rows asks for {count:,} rows with a label in column "{column}", and {len(there):,} have '
                "one; ask for fewer."
            )
        # A seed of its own for each column, the same in every process; RandomState's stream never changes.
        own = np.random.SeedSequence([seed, zlib.crc32(column.encode())])
        random = np.random.RandomState(np.random.MT19937(own))
        keeps = np.zeros(table.num_rows, bool)
        keeps[there[random.permutation(len(there))[:count]]] = True
        kept = pc.if_else(pa.array(keeps), values, pa.scalar(None, values.type))
        table = table.set_column(table.column_names.index(column), column, kept)
    return table
