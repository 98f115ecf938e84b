"""Encoded rows as records of equal length: one gather, or one read, fetches all columns of a row.

Values of one type lie together in a record, so that a batch is taken apart by one cast and one transposition a type,
whatever the number of columns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Arrays = Mapping[str, np.ndarray]
XY = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one column lies in a record: NumPy type name, shape of one row's value, whether it is a label."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_label: bool

    @property
    def bytes(self) -> int:
        """Length in a record."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Layout:
    """The order of the columns in a record.

    Args:
        slots: columns and labels, in the order in which batches name them.

    Example:

    >>> x, y = {"city": np.array([2, 3], "int32")}, {"buy": np.array([1, 0], "float32")}
    >>> layout = Layout.of(x, y)
    >>> records = layout.pack(x, y)
    >>> records.shape, layout.unpack(records)[0]["city"]
    ((2, 8), array([2, 3], dtype=int32))
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = tuple(slots)
        # Single values of one type side by side; a column of rows of values is on its own.
        groups: dict[Any, list[Slot]] = {}
        for slot in self.slots:
            groups.setdefault((slot.is_label, slot.name) if slot.shape else slot.dtype, []).append(slot)
        self._groups = list(groups.values())
        self._first: dict[tuple[bool, str], int] = {}
        self.width = 0  # bytes of a record
        for slot in (slot for group in self._groups for slot in group):
            self._first[slot.is_label, slot.name] = self.width
            self.width += slot.bytes

    @classmethod
    def of(cls, x: Arrays, y: Arrays) -> Layout:
        """Return the layout of `{field: (rows, ...)}` and `{task: (rows, ...)}`."""
        parts = ((x, False), (y, True))
        return cls(Slot(n, str(a.dtype), tuple(a.shape[1:]), label) for part, label in parts for n, a in part.items())

    def pack(self, x: Arrays, y: Arrays) -> np.ndarray:
        """Return the records, uint8 (rows, width)."""
        rows = len(next(iter((y or x).values())))
        records = np.empty((rows, self.width), np.uint8)
        for slot in self.slots:
            values = np.asarray((y if slot.is_label else x)[slot.name], slot.dtype)
            self._view(records, slot)[...] = values.reshape(rows, math.prod(slot.shape))
        return records

    def _view(self, records: np.ndarray, slot: Slot) -> np.ndarray:
        first = self._first[slot.is_label, slot.name]
        return records[:, first : first + slot.bytes].view(slot.dtype)

    def unpack(self, records: np.ndarray) -> XY:
        """Return (x, y) as views of records (rows, width): nothing is copied or, from a file, read yet."""
        x: dict[str, np.ndarray] = {}
        y: dict[str, np.ndarray] = {}
        for slot in self.slots:
            values = self._view(records, slot)
            (y if slot.is_label else x)[slot.name] = values.reshape(len(records), *slot.shape)
        return x, y

    def unpack_batch(self, records: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Return (x, y) of a tensor of records, uint8 (B, width), inside `tf.data` too."""
        found: dict[tuple[bool, str], tf.Tensor] = {}
        for group in self._groups:
            first, kind = self._first[group[0].is_label, group[0].name], np.dtype(group[0].dtype)
            count = sum(slot.bytes for slot in group) // kind.itemsize
            part = tf.slice(records, [0, first], [-1, count * kind.itemsize])
            if kind.itemsize > 1:
                part = tf.bitcast(tf.reshape(part, [-1, count, kind.itemsize]), kind)
            if group[0].shape:
                columns = [tf.reshape(part, [-1, *group[0].shape])]
            else:
                columns = tf.unstack(tf.transpose(part), count)
            found |= {(s.is_label, s.name): column for s, column in zip(group, columns, strict=True)}
        x, y = (
            {s.name: found[s.is_label, s.name] for s in self.slots if s.is_label is label} for label in (False, True)
        )
        return x, y

    def to_json(self) -> list[Any]:
        """Return what `from_json` makes the same layout of."""
        return [[s.name, s.dtype, list(s.shape), s.is_label] for s in self.slots]

    @classmethod
    def from_json(cls, content: Iterable[Any]) -> Layout:
        """Return the layout that `to_json` described."""
        return cls(Slot(name, dtype, tuple(shape), label) for name, dtype, shape, label in content)
