"""From files to encoded rows: through the cache, through a file in parts, and the same rows either way."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradalign.data import Part
from gradalign.data.encoded import RECORDS
from gradalign.errors import GradAlignWarning, UserError
from gradalign.training.build import prepare
from gradalign.training.config import validate
from gradalign.training.encoding import encode_all, learn
from gradalign.training.rows import read_tables

LITTLE = 1e-6  # gigabytes


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADALIGN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shop(tmp_path):
    """Writes the files and returns how to make a config of them."""

    def write(name, rows, seed):
        draw = np.random.default_rng(seed)
        table = {
            "age": draw.normal(40, 9, rows),
            "city": draw.choice(["Oslo", "Rome", "Lima"], rows),
            "tags": [draw.choice(list("abc"), draw.integers(0, 4)).tolist() for _ in range(rows)],
            "bought": draw.integers(0, 2, rows),
        }
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet", row_group_size=70)

    write("train", 500, 0)
    write("test", 300, 1)

    def config(**data):
        files = {name: str(tmp_path / f"{name}.parquet") for name in ("train", "test")}
        raw = {
            "data": {**files, "validation": "0.4 of test", **data},
            "tasks": {"buy": {"label": "bought", "positive": 1}},
        }
        return validate({"name": "shop", **raw})

    config.write = write
    return config


def rows_of(config, **named):
    return prepare(config, read_tables(config.data), **named)


def assert_same(one, other):
    assert one.schema == other.schema and one.schema.reasons == other.schema.reasons
    assert one.preprocessing.columns == other.preprocessing.columns
    for part in ("train", "validation", "test"):
        for a, b in zip(getattr(one, part), getattr(other, part), strict=True):
            assert list(a) == list(b)
            for name in a:
                width = min(a[name].shape[1], b[name].shape[1]) if a[name].ndim > 1 else None
                padding = [] if width is None else [a[name][:, width:], b[name][:, width:]]
                assert not any(part.any() for part in padding)
                np.testing.assert_array_equal(a[name][..., :width], b[name][..., :width])


def refuse_to_read(monkeypatch):
    def refuse(*_):
        raise AssertionError("a file was read")

    monkeypatch.setattr("gradalign.data.parts.read_table", refuse)


def test_a_second_run_reads_no_rows(shop, monkeypatch):
    first = rows_of(shop())
    with monkeypatch.context() as patch:
        refuse_to_read(patch)
        assert_same(rows_of(shop()), first)
        # Other tasks or features are others' rows.
        for changes in ({"features": {"drop": ["age"]}}, {"tasks": {"buy": {"label": "bought", "positive": 0}}}):
            with pytest.raises(AssertionError, match="a file was read"):
                rows_of(validate({**shop().model_dump(), **changes}))
        with pytest.raises(AssertionError, match="a file was read"):
            rows_of(shop(cache=False))
        with pytest.raises(AssertionError, match="a file was read"):
            rows_of(shop(limit=100))
    assert_same(rows_of(shop(cache=False)), first)


def test_a_changed_file_is_read_again(shop, cache):
    first = rows_of(shop())
    shop.write("test", 300, 2)
    second = rows_of(shop())
    assert not np.array_equal(first.test.records, second.test.records)
    np.testing.assert_array_equal(first.train.records, second.train.records)
    assert_same(second, rows_of(shop(cache=False)))


def test_what_is_damaged_in_the_cache_is_encoded_again(shop, cache):
    first = rows_of(shop())
    damaged = list(cache.glob(f"rows-*/{RECORDS}"))
    assert len(damaged) == 3
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-4])
    for path in cache.glob("learnt-*"):
        path.write_text(path.read_text()[:-4])
    assert_same(rows_of(shop()), first)
    assert all(path.stat().st_size > 4 for path in damaged)


def test_where_the_cache_cannot_be_written_one_sentence_says_so(shop, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADALIGN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(GradAlignWarning, match="cannot be written") as said:
        found = rows_of(shop())
    assert len(said) == 1
    assert_same(found, rows_of(shop(cache=False)))


def test_without_a_cache_nothing_is_written(shop, cache):
    rows_of(shop(cache=False))
    assert not cache.exists()


def test_a_warning_is_said_on_a_hit_too(shop):
    rows_of(shop())
    table = pq.read_table(shop().data.test)
    unknown = pa.array(["Bonn"] * table.num_rows)
    pq.write_table(table.set_column(1, "city", unknown), shop().data.test)
    for memory in (None, None, LITTLE):
        with pytest.warns(GradAlignWarning, match='No value of column "city" of .* was seen in training') as said:
            rows_of(shop(memory_gb=memory))
        assert len(said) == 2  # of the validation part and of the test part


@pytest.mark.parametrize("data", [{}, {"limit": 130}, {"validation": "0.3 of train"}, {"validation": None}])
def test_rows_read_in_parts_are_the_same(shop, data, monkeypatch):
    wanted = rows_of(shop(**data, cache=False))
    refuse_to_read(monkeypatch)
    monkeypatch.setattr(Part.tables, "__defaults__", (None, 64))
    config = shop(**data, memory_gb=LITTLE)
    tables = read_tables(config.data)
    assert tables.is_streamed
    found = prepare(config, tables)
    if data.get("validation", "") is None:
        assert found.validation is None and wanted.validation is None
        found, wanted = (type(p)(p.config, p.schema, p.preprocessing, p.train, p.test, p.test) for p in (found, wanted))
    assert_same(found, wanted)
    assert found.config.data.memory_gb == pytest.approx(LITTLE, rel=1e-3) and found.train.path is not None


def test_encoded_rows_of_an_interrupted_run_are_used_and_others_replaced(shop, tmp_path):
    config = shop(memory_gb=LITTLE)
    tables = read_tables(config.data)
    learnt = learn(config, tables)
    folder = tmp_path / "run" / "rows"
    first = encode_all(learnt, tables, folder)
    written = (folder / "train" / RECORDS).stat().st_ino
    assert sorted(path.name for path in folder.iterdir()) == ["test", "train", "validation"]
    (folder / "test" / RECORDS).write_bytes(b"half")
    again = encode_all(learn(learnt.config, tables, learnt.preprocessing), tables, folder)
    assert (folder / "train" / RECORDS).stat().st_ino == written
    np.testing.assert_array_equal(again.train.records, first.train.records)
    assert len(again.test) == 180
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=r'test.parquet cannot be written|train.parquet cannot be written to ".*" \(.*\); they take'
    ):
        encode_all(learnt, tables, tmp_path / "file" / "rows")


def test_a_temporary_file_goes_with_the_rows(shop):
    found = rows_of(shop(memory_gb=LITTLE))
    path = found.train.path
    assert path.exists()
    del found
    gc.collect()
    assert not path.exists()


def test_when_files_are_read_in_parts(shop, monkeypatch):
    need = sum(
        Part(file).file.memory
        for file in {p.file for p in vars(read_tables(shop().data)).values() if isinstance(p, Part)}
    )
    assert need > 3 * sum(pq.read_table(path).nbytes for path in (shop().data.train, shop().data.test)) * 0.9
    assert not read_tables(shop(memory_gb=(need + 1) / 2**30).data).is_streamed
    assert read_tables(shop(memory_gb=(need - 1) / 2**30).data).is_streamed
    # Half of the machine's memory, which the resolved config tells, so that a run resumed elsewhere goes on in its way.
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert read_tables(shop().data).memory_limit == 4096 * 500
    assert learn(shop(), read_tables(shop().data)).config.data.memory_gb == 4096 * 500 / 2**30


@pytest.mark.parametrize("memory", [None, LITTLE])
def test_a_file_cut_in_half_ends_in_one_sentence(shop, memory):
    path = Path(shop().data.test)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        UserError, match=r"test.parquet cannot be read as Parquet; it may be damaged or cut short"
    ) as said:
        rows_of(shop(memory_gb=memory))
    assert "\n" not in str(said.value)
