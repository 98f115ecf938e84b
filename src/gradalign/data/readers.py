"""Tables from files, and their split."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gradalign.errors import UserError

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PART = 1 << 16  # rows of a file that is read in parts
_PAGES = 1 << 20  # bytes of a Parquet column that are read at once
_BLOCK = 1 << 28  # bytes of a CSV from which the types of its columns are guessed


def read_table(path: str | os.PathLike[str], types: Mapping[str, str] | None = None) -> pa.Table:
    r"""Read a Parquet or CSV file, told apart by the suffix.

    In a CSV, an empty cell of a column of numbers is null; text stays as it is written, "NA" included.

    Args:
        path: `.parquet`, `.pq`, `.csv`, `.csv.gz`, `.tsv` or `.tsv.gz`.
        types: column -> Arrow type name ("string", "int32", "double" ...) for a CSV, which holds no types itself; other
            columns' types are guessed. `Preprocessing.types` gives the training table's columns of text. Columns that
            the file lacks are ignored.

    Returns:
        The table, with at least one row and unique column names.

    Raises:
        UserError: no such file, a folder, an unknown suffix, a damaged or empty file, a CSV that is not UTF-8, a
            repeated column name.

    Example:

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.csv"
    >>> _ = path.write_text("age,city\n31,Oslo\n,Rome\n")
    >>> read_table(path).to_pydict()
    {'age': [31, None], 'city': ['Oslo', 'Rome']}
    """
    path = check_file(path)
    name = path.name.lower()
    with readable(path):
        table = open_parquet(path).read() if is_parquet(path) else _read_csv(path, name, types or {})
    _check_columns(path, table.column_names, table.num_rows)
    return table


def check_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is there and has a known suffix, else raise a UserError."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"There is no file {path}.")
    if path.is_dir():
        raise UserError(f"{path} is a folder; name one file.")
    if not path.name.lower().endswith(PARQUET + CSV):
        raise UserError(f"{path} is neither Parquet nor CSV by its suffix; it must end in {', '.join(PARQUET + CSV)}.")
    return path


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet by its suffix.

    >>> is_parquet(Path("a.PARQUET")), is_parquet(Path("a.csv"))
    (True, False)
    """
    return path.name.lower().endswith(PARQUET)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what Arrow says of a damaged file into one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if "conversion error" in str(error):
            raise UserError(f"{path} holds a value that its column cannot hold ({_one_line(error)}).") from error
        kind = "Parquet" if is_parquet(path) else "CSV"
        raise UserError(
            f"{path} cannot be read as {kind}; it may be damaged or cut short ({_one_line(error)})."
        ) from error


def open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """Open a Parquet file, of which only the footer is read yet.

    One file, not a data set: a folder named `a=1` above it must not become a column. Pages are read as they are needed,
    not a row group at a time, which may be all of the file.
    """
    return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_PAGES)


def read_parts(
    path: str | os.PathLike[str], columns: Sequence[str] | None = None, rows: int = PART
) -> Iterator[pa.Table]:
    """Read a Parquet file in parts of `rows` rows; the last one may be smaller.

    Args:
        path: `.parquet` or `.pq`.
        columns: to read; None for all.
        rows: of a part.

    Raises:
        UserError: as `read_table` does; damage past the first part when it is reached.

    Example:

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "small.parquet"
    >>> pyarrow.parquet.write_table(pa.table({"age": range(5)}), path, row_group_size=3)
    >>> [part.num_rows for part in read_parts(path, rows=2)]
    [2, 2, 1]
    """
    path = check_file(path)
    with readable(path):
        file = open_parquet(path)
        _check_columns(path, file.schema_arrow.names, file.metadata.num_rows)
        held: list[pa.Table] = []
        for batch in file.iter_batches(rows, columns=None if columns is None else list(columns)):
            held.append(pa.Table.from_batches([batch]))
            if sum(part.num_rows for part in held) >= rows:  # batches end with their row group
                joined = pa.concat_tables(held)
                yield joined.slice(0, rows)
                held = [joined.slice(rows)]
        if held and (last := pa.concat_tables(held)).num_rows:
            yield last


def _check_columns(path: Path, names: Sequence[str], rows: int) -> None:
    repeated = [c for c in names if names.count(c) > 1]
    if repeated:
        raise UserError(f'{path} has more than one column named "{repeated[0]}"; rename all but one.')
    if rows == 0:
        raise UserError(f"{path} has no rows.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _read_csv(path: Path, name: str, types: Mapping[str, str]) -> pa.Table:
    table = pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t" if ".tsv" in name else ",",
            newlines_in_values=True,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={column: pa.type_for_alias(alias) for column, alias in types.items()},
        ),
    )
    # Arrow hands out text that is not UTF-8 as bytes, and such names only fail when they are read.
    if any(pa.types.is_binary(kind) for kind in table.schema.types) or not _decodes(table.schema):
        raise UserError(f"{path} is not encoded in UTF-8; save it as UTF-8.")
    return table


def _decodes(schema: pa.Schema) -> bool:
    try:
        return bool(schema.names)
    except UnicodeDecodeError:
        return False


def split_rows(table: pa.Table, share: float, seed: int) -> tuple[pa.Table, pa.Table]:
    """Split `table` at random into two tables, each in the order of the rows.

    Args:
        table: of N rows.
        share: of the rows that go to the first part, in (0, 1); it gets `round(share * N)` of them.
        seed: the same seed gives the same split on every machine and with every NumPy.

    Returns:
        The first part and the rest.

    Raises:
        UserError: `share` is out of range, or a part would be empty.

    Example:

    >>> first, rest = split_rows(pa.table({"a": range(10)}), 0.3, seed=0)
    >>> first.num_rows, rest.num_rows
    (3, 7)
    """
    first, rest = split_order(table.num_rows, share, seed)
    return table.take(first), table.take(rest)


def split_order(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the rows of the two parts that `split_rows` splits `rows` rows into, ascending.

    >>> split_order(5, 0.4, seed=0)
    (array([0, 2]), array([1, 3, 4]))
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise UserError(f"The share of rows to split off must be between 0 and 1, received {share!r}.")
    first = round(share * rows)
    if not 0 < first < rows:
        raise UserError(f"{rows} rows cannot be split with a share of {share}: one part would be empty.")
    # RandomState, because NumPy promises that its stream never changes; that of default_rng may.
    order = np.random.RandomState(seed).permutation(rows)
    return np.sort(order[:first]), np.sort(order[first:])
