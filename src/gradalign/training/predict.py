"""Scores for a file: all of its columns, and one more per task."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gradalign.data import DataFile, UnseenColumns
from gradalign.data.readers import read_parts
from gradalign.errors import GradAlignWarning, UserError
from gradalign.training.run_folder import Run
from gradalign.training.scoring import scores

_ROWS = 65_536  # rows that are encoded and scored at a time


def predict(
    run: Run,
    data: Path,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Score every row of a file and write them, with all of its columns, to another.

    Args:
        run: the run.
        data: a Parquet or CSV file with the inputs; it needs no labels.
        out: the file to write, .parquet or .csv.
        overwrite: replace `out` where it exists.
        progress: is called with the number of rows that are done and that of all rows.

    Returns:
        `out`. A task's scores, float32 probabilities, are in a column named like the task, or `<task>_score` where the
        file has a column of that name.

    Raises:
        UserError: the file is missing or damaged or lacks a column, or `out` cannot be written.
    """
    _check_out(out, data, overwrite)
    preprocessing = run.preprocessing()
    file = DataFile(data, lambda: preprocessing.types)
    names = score_columns(file.schema.names, run.config.tasks)
    # What is wrong with the columns is said before anything is loaded or written.
    preprocessing.raw(next(_tables(file, 1)), str(data))
    if out.suffix.lower() == ".csv":
        _check_csv_can_hold(file.schema, out)
    base = run.model().base
    unseen = UnseenColumns(preprocessing)

    def scored() -> Iterator[pa.Table]:
        done = 0
        for part in _tables(file, _ROWS):
            found, table = scores(base, preprocessing.encode_part(part, str(data), unseen)), part
            for task, name in names.items():
                table = table.append_column(name, pa.array(found[task]))
            yield table
            done += table.num_rows
            if progress is not None:
                progress(done, file.rows)

    _write(out, scored())
    for sentence in unseen.sentences(str(data)):
        warnings.warn(sentence, GradAlignWarning, stacklevel=2)
    return out


def _tables(file: DataFile, rows: int) -> Iterator[pa.Table]:
    """The file in tables of `rows` rows; of a Parquet file no more is in memory."""
    if file.is_parquet:
        yield from read_parts(file.path, rows=rows)
    else:
        yield from (file.table.slice(first, rows) for first in range(0, file.rows, rows))


def score_columns(columns: Iterable[str], tasks: Iterable[str]) -> dict[str, str]:
    """Return {task: name of its score's column}, which is the task's own name where that is free.

    >>> score_columns(["age", "buy"], ["click", "buy"])
    {'click': 'click', 'buy': 'buy_score'}
    """
    taken, names = set(columns), {}
    for task in tasks:
        name = task if task not in taken else f"{task}_score"
        if name in taken:
            raise UserError(f'The data has the columns "{task}" and "{name}" already; rename one of them.')
        taken.add(name)
        names[task] = name
    return names


def _check_out(out: Path, data: Path, overwrite: bool) -> None:
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise UserError(f'"{out}" must end in .parquet or .csv, which says what to write.')
    if out.is_dir():
        raise UserError(f'"{out}" is a folder; give the name of a file.')
    if out.exists() and data.exists() and out.samefile(data):
        raise UserError(f'"{out}" is the file to score; choose another --out.')
    if out.exists() and not overwrite:
        raise UserError(f'"{out}" exists; choose another --out, or replace it with --overwrite.')


def _check_csv_can_hold(schema: pa.Schema, out: Path) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise UserError(
                f'The column "{field.name}" holds lists or records ({field.type}), which a CSV cannot; '
                f'give --out a name that ends in .parquet instead of "{out}".'
            )


def _write(out: Path, tables: Iterator[pa.Table]) -> None:
    """Write the tables one after the other under a temporary name, then rename the file."""
    temporary = out.with_name(f".{out.name}.tmp")
    first = next(tables)
    is_csv = out.suffix.lower() == ".csv"
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        writer = pyarrow.csv.CSVWriter if is_csv else pyarrow.parquet.ParquetWriter
        with writer(temporary, first.schema) as sink:
            sink.write_table(first)
            for table in tables:
                sink.write_table(table)
        os.replace(temporary, out)
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f'The scores cannot be written to "{out}": {reason}.') from None
    finally:
        temporary.unlink(missing_ok=True)
