"""Parts of files: the same rows as a table and read in parts, and told from rows of yesterday."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradalign.data import DataFile, Part, Split, read_table
from gradalign.errors import UserError

TABLE = pa.table({"i": np.arange(50), "tags": [[str(i)] * (i % 3) for i in range(50)]})


@pytest.fixture
def path(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=7)
    return tmp_path / "t.parquet"


@pytest.mark.parametrize("split", [None, Split(0.3, 5, True), Split(0.3, 5, False)])
@pytest.mark.parametrize("limit", [None, 1, 11, 1000])
@pytest.mark.parametrize("size", [1, 4, 7, 64])
def test_in_parts_they_are_the_same_rows(path, split, limit, size):
    part = Part(DataFile(path), split, limit)
    parts = list(part.tables(rows=size))
    assert all(0 < table.num_rows <= size for table in parts)
    assert pa.concat_tables(parts).equals(part.table()) and part.rows == part.table().num_rows
    some = list(part.tables(["tags"], size))
    assert some[0].column_names == ["tags"] and sum(table.num_rows for table in some) == part.rows


def test_only_the_footer_tells_rows_and_columns(path, monkeypatch):
    monkeypatch.setattr("gradalign.data.parts.read_table", None)
    file = DataFile(path)
    assert file.rows == 50 and file.schema.names == ["i", "tags"] and file.is_parquet
    assert file.memory >= 3 * TABLE.nbytes * 0.9


def test_an_identity_changes_with_the_file_and_with_the_rows(path, tmp_path):
    part = Part(DataFile(path))
    assert Part(DataFile(path)).identity == part.identity
    others = [
        Part(DataFile(path), Split(0.3, 5, True)),
        Part(DataFile(path), Split(0.3, 5, False)),
        Part(DataFile(path), None, 9),
    ]
    touched, changed = tmp_path / "t.parquet", path.read_bytes()
    about = path.stat()
    identities = {part.identity, *(other.identity for other in others)}
    assert len(identities) == 4
    os.utime(touched, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    identities.add(Part(DataFile(path)).identity)
    path.write_bytes(changed[:-9] + bytes([changed[-9] ^ 1]) + changed[-8:])  # of the same size and time
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    identities.add(Part(DataFile(path)).identity)
    assert len(identities) == 6


def test_a_file_cut_in_half_says_so_in_parts_as_in_one(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for read in (lambda: read_table(path), lambda: DataFile(path).rows, lambda: list(Part(DataFile(path)).tables())):
        with pytest.raises(
            UserError, match=r"t.parquet cannot be read as Parquet; it may be damaged or cut short"
        ) as said:
            read()
        assert "\n" not in str(said.value)


def test_damage_past_the_first_part_says_so_when_it_is_reached(tmp_path):
    path = tmp_path / "t.parquet"
    numbers = pa.table({"x": np.random.default_rng(0).normal(size=20_000)})
    pq.write_table(numbers, path, row_group_size=5_000, compression="gzip", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(2).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset : chunk.data_page_offset + 300] = bytes(300)
    path.write_bytes(content)
    parts = Part(DataFile(path)).tables(rows=5_000)
    assert next(parts).num_rows == next(parts).num_rows == 5_000
    with pytest.raises(UserError, match=r"t.parquet cannot be read as Parquet; it may be damaged or cut short"):
        next(parts)


def test_a_csv_is_read_with_the_types_it_is_given(tmp_path):
    (tmp_path / "t.csv").write_text("zip\n0151\n")
    file = DataFile(tmp_path / "t.csv", lambda: {"zip": "string"})
    assert file.table["zip"].to_pylist() == ["0151"] and file.rows == 1 and not file.is_parquet
    assert file.identity != DataFile(tmp_path / "t.csv").identity
