"""Encoded rows, in memory or in a file that is read block by block."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gradalign.data.layout import XY, Arrays, Layout

FORMAT = 1
RECORDS, ABOUT = "rows.bin", "about.json"
_PIECE = 1 << 26  # bytes that are checked at a time


class DamagedRowsError(Exception):
    """A folder of encoded rows is missing, cut short, changed or of another format; the rows must be encoded anew."""


@dataclasses.dataclass(frozen=True)
class EncodedRows:
    """The inputs and labels of rows, as records.

    Unpacks to `x, y`: `{field: (rows, ...)}` and `{task: float32 (rows,)}`, NaN where there is no label.

    Args:
        layout: of the records.
        records: uint8 (rows, width); a memory map where the rows are in a file.
        path: the file that holds the records, or None where they are in memory.
        warnings: what encoding them had to say.

    Example:

    >>> rows = EncodedRows.of({"age": np.array([31, 47])}, {"buy": np.array([0.0, 1.0], "float32")})
    >>> x, y = rows
    >>> len(rows), y["buy"], rows.take([1])[0]["age"]
    (2, array([0., 1.], dtype=float32), array([47]))
    """

    layout: Layout
    records: np.ndarray
    path: Path | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, x: Arrays, y: Arrays, warnings: Iterable[str] = ()) -> EncodedRows:
        """Return rows in memory."""
        layout = Layout.of(x, y)
        return cls(layout, layout.pack(x, y), warnings=tuple(warnings))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return iter(self.layout.unpack(self.records))

    def take(self, rows: Any) -> XY:
        """Return (x, y) of some rows: a slice, or their numbers."""
        return self.layout.unpack(np.ascontiguousarray(self.records[rows]))


def write_rows(
    folder: Path, layout: Layout, parts: Iterable[np.ndarray], key: str, warnings: Iterable[str] = ()
) -> None:
    """Write records to a folder, which appears, or replaces the one there, only when it is complete.

    Two processes may write the same folder; one of the two, which hold the same, stays.

    Args:
        folder: to write; the folder around it exists.
        layout: of the records.
        parts: records, one part after the other.
        key: what the rows were made from; `read_rows` asks for it.
        warnings: what encoding had to say; may be filled while `parts` are drawn.

    Raises:
        OSError: it cannot be written.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        checksum = rows = 0
        with (temporary / RECORDS).open("wb") as file:
            for part in parts:
                content = np.ascontiguousarray(part).data
                checksum = zlib.crc32(content, checksum)
                rows += len(part)
                file.write(content)
        about = {
            "format": FORMAT,
            "key": key,
            "rows": rows,
            "checksum": checksum,
            "layout": layout.to_json(),
            "warnings": list(warnings),
        }
        (temporary / ABOUT).write_text(json.dumps(about, ensure_ascii=False), "utf-8")
        _put_in_place(temporary, folder, key)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path, key: str) -> None:
    for _ in range(2):
        try:
            temporary.rename(folder)
            return
        except OSError:
            if not folder.exists():
                raise
            if _is_complete(folder, key):
                return  # another process was first
            shutil.rmtree(folder, ignore_errors=True)  # damaged or stale
    raise OSError(f'"{folder}" cannot be replaced')


def _is_complete(folder: Path, key: str) -> bool:
    try:
        read_rows(folder, key, in_memory=False)
    except DamagedRowsError:
        return False
    return True


def read_rows(folder: Path, key: str, *, in_memory: bool) -> EncodedRows:
    """Return the rows that `write_rows` wrote to `folder` under `key`.

    Args:
        folder: where they are.
        key: what they must have been made from.
        in_memory: read them; else they are mapped, and pages come and go as they are used.

    Raises:
        DamagedRowsError: they are not there, made from something else, cut short or changed.
    """
    path = folder / RECORDS
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        if about["format"] != FORMAT or about["key"] != key:
            raise DamagedRowsError(f"{folder} is of another format or another input.")
        layout, rows = Layout.from_json(about["layout"]), about["rows"]
        if path.stat().st_size != rows * layout.width:
            raise DamagedRowsError(f"{path} is cut short.")
        if in_memory or not rows:
            flat = np.fromfile(path, np.uint8)
        else:
            flat = np.memmap(path, np.uint8, "r")
        checksum = 0
        for start in range(0, len(flat), _PIECE):
            checksum = zlib.crc32(flat[start : start + _PIECE].data, checksum)
        if checksum != about["checksum"]:
            raise DamagedRowsError(f"{path} was changed.")
        records = flat.reshape(rows, layout.width)
        return EncodedRows(layout, records, None if in_memory else path, tuple(about["warnings"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedRowsError(f"{folder} cannot be read ({error}).") from error
