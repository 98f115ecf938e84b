import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from gradalign.data import read_table, split_rows
from gradalign.errors import UserError

TABLE = pa.table({"age": pa.array([31, None], pa.int32()), "city": ["Oslo", None], "tags": [["a"], []]})


def test_parquet_keeps_its_types(tmp_path):
    pyarrow.parquet.write_table(TABLE, tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").equals(TABLE)
    assert read_table(str(tmp_path / "t.parquet")).equals(TABLE)


def test_a_folder_above_the_file_adds_no_column(tmp_path):
    (tmp_path / "day=1").mkdir()
    pyarrow.parquet.write_table(TABLE, tmp_path / "day=1" / "t.pq")
    assert read_table(tmp_path / "day=1" / "t.pq").column_names == ["age", "city", "tags"]


@pytest.mark.parametrize("name", ["t.csv", "t.CSV", "t.tsv", "t.csv.gz", "t.tsv.gz"])
def test_csv_and_its_relatives(tmp_path, name):
    text = "age,city\n31,Oslo\n,NA\n"
    content = (text.replace(",", "\t") if ".tsv" in name else text).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_table(tmp_path / name).to_pydict() == {"age": [31, None], "city": ["Oslo", "NA"]}


def test_csv_with_quotes_newlines_and_a_byte_order_mark(tmp_path):
    (tmp_path / "t.csv").write_bytes('\ufeffcity,n\n"Oslo, ""N""\nO",1\n'.encode())
    assert read_table(tmp_path / "t.csv").to_pydict() == {"city": ['Oslo, "N"\nO'], "n": [1]}


def test_a_csv_column_can_be_read_as_text(tmp_path):
    (tmp_path / "t.csv").write_text("zip,n\n0151,1\n")
    assert read_table(tmp_path / "t.csv").to_pydict() == {"zip": [151], "n": [1]}
    assert read_table(tmp_path / "t.csv", {"zip": "string", "other": "string"}).to_pydict() == {
        "zip": ["0151"],
        "n": [1],
    }


def test_the_type_of_a_csv_column_is_guessed_from_all_of_it(tmp_path):
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 800_000 + "x\n")  # more than Arrow's usual first block of 1 MB
    assert read_table(tmp_path / "t.csv")["a"].type == pa.string()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("half.parquet", b"PAR1 and then", r"half.parquet cannot be read as Parquet; it may be damaged or cut short"),
        ("empty.parquet", b"", r"empty.parquet cannot be read as Parquet"),
        ("empty.csv", b"", r"empty.csv cannot be read as CSV"),
        ("ragged.csv", b"a,b\n1,2\n1\n", r"ragged.csv cannot be read as CSV.*Expected 2 columns, got 1"),
        ("cell.csv", "a\n城市\n".encode("gbk"), r"cell.csv is not encoded in UTF-8; save it as UTF-8"),
        ("head.csv", "城市\n1\n".encode("gbk"), r"head.csv is not encoded in UTF-8; save it as UTF-8"),
        ("bare.csv", b"a,b\n", r"bare.csv has no rows"),
        ("twice.csv", b"a,b,a\n1,2,3\n", r'twice.csv has more than one column named "a"'),
        ("table.xlsx", b"PK", r"table.xlsx is neither Parquet nor CSV by its suffix; it must end in .parquet"),
        ("not.csv.gz", b"a\n1\n", r"not.csv.gz cannot be read as CSV"),
    ],
)
def test_bad_files_end_in_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_table(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_half_a_parquet_file(tmp_path):
    pyarrow.parquet.write_table(TABLE, tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    for length in (len(content) // 2, len(content) - 1):
        (tmp_path / "half.parquet").write_bytes(content[:length])
        with pytest.raises(UserError, match=r"half.parquet cannot be read as Parquet"):
            read_table(tmp_path / "half.parquet")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match=r"There is no file .*no\.parquet"):
        read_table(tmp_path / "no.parquet")
    (tmp_path / "d.parquet").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        read_table(tmp_path / "d.parquet")


def test_a_typed_csv_column_that_does_not_convert(tmp_path):
    (tmp_path / "t.csv").write_text("n\n1\nmany\n")
    with pytest.raises(UserError, match=r"t.csv holds a value that its column cannot hold .*many"):
        read_table(tmp_path / "t.csv", {"n": "int32"})


@pytest.mark.parametrize(("share", "rows"), [(0.5, 10), (0.1, 10), (0.5, 11), (0.25, 1001)])
def test_a_split_is_a_partition_in_the_order_of_rows(share, rows):
    table = pa.table({"i": np.arange(rows)})
    first, rest = split_rows(table, share, seed=3)
    a, b = first["i"].to_numpy(), rest["i"].to_numpy()
    assert len(a) == round(share * rows)
    assert np.array_equal(np.sort(np.concatenate([a, b])), np.arange(rows))
    assert np.all(np.diff(a) > 0) and np.all(np.diff(b) > 0)


def test_a_split_depends_on_the_seed_alone():
    table = pa.table({"i": np.arange(20)})
    assert split_rows(table, 0.5, 0)[0].equals(split_rows(table, 0.5, 0)[0])
    assert not split_rows(table, 0.5, 0)[0].equals(split_rows(table, 0.5, 1)[0])
    # Frozen: runs of different versions are compared on the same rows.
    assert split_rows(table, 0.25, 0)[0]["i"].to_pylist() == [1, 8, 10, 18, 19]


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, "0.5", True, None])
def test_a_share_out_of_range_is_quoted(share):
    with pytest.raises(UserError, match="received"):
        split_rows(pa.table({"i": [1, 2, 3]}), share, 0)


def test_a_split_that_leaves_a_part_empty_is_refused():
    with pytest.raises(UserError, match=r"1 rows cannot be split with a share of 0.5"):
        split_rows(pa.table({"i": [1]}), 0.5, 0)
