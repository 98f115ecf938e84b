"""A cache of what was learnt from files and of their encoded rows, in a folder of the user's.

It is only ever an acceleration: what is missing, stale or damaged in it is made anew, and where it cannot be written
one sentence says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradalign._version import __version__
from gradalign.data.encoded import FORMAT, DamagedRowsError, EncodedRows, read_rows, write_rows
from gradalign.errors import GradAlignWarning

LIMIT = 2 << 30  # bytes of all entries; those that were used longest ago go first
_FORGOTTEN = 86_400.0  # seconds after which a half-written entry has no writer any more


def cache_folder() -> Path:
    """Return $GRADALIGN_CACHE, or `gradalign` in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("GRADALIGN_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gradalign"


def digest(*facts: Any) -> str:
    """Return a key of facts that JSON can hold, of this version and of its format.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    text = json.dumps([FORMAT, __version__, *facts], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


class Cache:
    """Entries by key; several processes may use one folder at a time.

    Args:
        folder: where the entries are; by default `cache_folder()`. It is made when the first entry is written.
        limit: bytes of all rows that are kept.

    Example:

    >>> import numpy as np
    >>> cache = Cache(Path(tempfile.mkdtemp()))
    >>> cache.rows("key") is None
    True
    >>> cache.keep_rows("key", EncodedRows.of({"age": np.array([31])}, {"buy": np.array([1.0])}))
    >>> len(cache.rows("key"))
    1
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT) -> None:
        self.folder = cache_folder() if folder is None else folder
        self._limit = limit
        self._has_warned = False

    def rows(self, key: str) -> EncodedRows | None:
        """Return the rows kept under a key, read into memory, or None."""
        entry = self.folder / f"rows-{key}"
        try:
            found = read_rows(entry, key, in_memory=True)
        except DamagedRowsError:
            return None
        self._touch(entry)
        return found

    def keep_rows(self, key: str, rows: EncodedRows) -> None:
        """Keep rows, unless they alone are more than the limit.

        Warns:
            GradAlignWarning: they cannot be written; said once.
        """
        if rows.records.nbytes > self._limit:
            return
        entry = self.folder / f"rows-{key}"
        self._write(lambda: write_rows(entry, rows.layout, [rows.records], key, rows.warnings))

    def learnt(self, key: str) -> Any:
        """Return the JSON kept under a key, or None."""
        entry = self.folder / f"learnt-{key}.json"
        try:
            content = json.loads(entry.read_text("utf-8"))
            found = content["learnt"] if content["checksum"] == _checksum(content["learnt"]) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._touch(entry)
        return found

    def keep_learnt(self, key: str, learnt: Any) -> None:
        """Keep what JSON can hold.

        Warns:
            GradAlignWarning: it cannot be written; said once.
        """

        def write() -> None:
            text = json.dumps({"checksum": _checksum(learnt), "learnt": learnt}, ensure_ascii=False)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.folder, prefix=".learnt-", suffix=".partial", delete=False
            ) as file:
                file.write(text)
            os.replace(file.name, self.folder / f"learnt-{key}.json")

        self._write(write)

    def _write(self, write: Callable[[], None]) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write()
            self._tidy()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f'The cache in "{self.folder}" cannot be written ({error.strerror or error}), so the next run '
                    "encodes its rows again; name another folder in GRADALIGN_CACHE, or set data.cache to false.",
                    GradAlignWarning,
                    stacklevel=4,
                )

    @staticmethod
    def _touch(entry: Path) -> None:
        try:
            os.utime(entry)
        except OSError:
            return  # not ours to write: it is used all the same, and goes first when room is made

    def _tidy(self) -> None:
        """Make room, and remove what writers that died left behind."""
        entries = []
        for path in self.folder.iterdir():
            try:
                about = path.stat()
                if path.name.endswith(".partial"):
                    if about.st_mtime < time.time() - _FORGOTTEN:
                        _remove(path)
                else:
                    inside = [p.stat().st_size for p in path.iterdir()] if path.is_dir() else [about.st_size]
                    entries.append((about.st_mtime, path, sum(inside)))
            except FileNotFoundError:
                continue  # another process was faster
        total = sum(size for _, _, size in entries)
        for _, path, size in sorted(entries):
            if total <= self._limit:
                return
            _remove(path)
            total -= size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
