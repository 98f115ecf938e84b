"""Reading what runs and comparisons leave: text, tables, JSON and YAML, with a sentence for what is damaged."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradalign.errors import UserError

__all__ = ["figure", "number", "read_json", "read_table", "read_text", "read_yaml", "write"]


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        UserError: it is missing, or no UTF-8 text.
    """
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise UserError(f'The report needs "{path}", which is missing; restore it, or make the folder again.') from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f'"{path}" cannot be read: {reason}.') from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping that a JSON file holds.

    Raises:
        UserError: it holds none.
    """
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError:
        raise _damaged(path, "it is not JSON") from None
    return _mapping(found, path)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        UserError: it holds none.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(read_text(path))
    except YAMLError:
        raise _damaged(path, "it is not YAML") from None
    return _mapping(found, path)


def read_table(path: Path, columns: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header.

    Args:
        path: of the file.
        columns: that it has to have.

    Raises:
        UserError: a column is missing, or a row has more or fewer cells than there are columns.
    """
    reader = csv.DictReader(io.StringIO(read_text(path)))
    rows = list(reader)
    for column in columns:
        if column not in (reader.fieldnames or []):
            raise _damaged(path, f'it has no column "{column}"')
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise _damaged(path, f"its line {line} has another number of cells than the first one")
    return rows


def number(text: str, path: Path, column: str) -> float | None:
    """Return a cell's figure; None for an empty one and NaN.

    Raises:
        UserError: it is no number.
    """
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        raise _damaged(path, f'its column "{column}" holds "{text}", which is no number') from None
    return None if math.isnan(found) else found


def figure(found: Mapping[str, Any], name: str, path: Path) -> float | None:
    """Return a figure of a JSON file; None where it is missing, null or NaN.

    Raises:
        UserError: it is no number.
    """
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _damaged(path, f'its "{name}" is {value!r}, which is no number')
    return None if math.isnan(value) else float(value)


def write(path: Path, text: str) -> Path:
    """Write a file under a temporary name, give it its own, and return its path.

    Raises:
        UserError: it cannot be written.
    """
    temporary = path.with_name(f".writing-{path.name}")
    try:
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f'The report cannot be written to "{path.parent}": {error.strerror}.') from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _mapping(found: Any, path: Path) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _damaged(path, "it holds no mapping")
    return found


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f'"{path}" is damaged: {why}; restore it, or make the folder again.')
