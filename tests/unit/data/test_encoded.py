"""Encoded rows in a folder: whole or not there, and never taken for what they are not."""

import json

import numpy as np
import pytest

from gradalign.data.encoded import ABOUT, RECORDS, DamagedRowsError, EncodedRows, read_rows, write_rows

ROWS = EncodedRows.of({"age": np.arange(7, dtype="int32")}, {"buy": np.arange(7, dtype="float32")}, ["odd"])


def write(folder, rows=ROWS, key="key", parts=None):
    write_rows(folder, rows.layout, parts or [rows.records[:4], rows.records[4:]], key, rows.warnings)


@pytest.mark.parametrize("in_memory", [True, False])
def test_written_in_parts_they_are_read_as_one(tmp_path, in_memory):
    write(tmp_path / "rows")
    found = read_rows(tmp_path / "rows", "key", in_memory=in_memory)
    assert len(found) == 7 and found.warnings == ("odd",)
    assert found.path == (None if in_memory else tmp_path / "rows" / RECORDS)
    x, y = found
    np.testing.assert_array_equal(x["age"], np.arange(7))
    np.testing.assert_array_equal(y["buy"], np.arange(7.0))
    np.testing.assert_array_equal(found.take([5, 0])[0]["age"], [5, 0])
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def _cut(folder):
    path = folder / RECORDS
    path.write_bytes(path.read_bytes()[:-1])


def _change(folder):
    path = folder / RECORDS
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def _other_format(folder):
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps({**about, "format": 99}))


DAMAGE = {
    "cut": _cut,
    "changed": _change,
    "other format": _other_format,
    "no description": lambda folder: (folder / ABOUT).unlink(),
    "half a description": lambda folder: (folder / ABOUT).write_text("{"),
    "another shape": lambda folder: (folder / ABOUT).write_text("[]"),
    "no rows": lambda folder: (folder / RECORDS).unlink(),
    "other input": lambda folder: write(folder, key="other"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_or_stale_is_refused_and_replaced(tmp_path, damage):
    folder = tmp_path / "rows"
    write(folder)
    DAMAGE[damage](folder)
    with pytest.raises(DamagedRowsError):
        read_rows(folder, "key", in_memory=True)
    write(folder)
    assert len(read_rows(folder, "key", in_memory=True)) == 7


def test_the_second_of_two_writers_leaves_the_first_ones(tmp_path):
    def parts():
        yield ROWS.records
        write(tmp_path / "rows")  # another process is faster
        first.append((tmp_path / "rows" / RECORDS).stat().st_ino)

    first = []
    write(tmp_path / "rows", parts=parts())
    assert (tmp_path / "rows" / RECORDS).stat().st_ino == first[0]
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def parts():
        yield ROWS.records
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "rows", parts=parts())
    assert list(tmp_path.iterdir()) == []
