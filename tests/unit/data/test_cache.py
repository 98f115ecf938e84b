"""The cache: kept, found, made anew where it is damaged, bounded, and never in the way."""

import os
import time

import numpy as np
import pytest

from gradalign.data.cache import Cache, cache_folder, digest
from gradalign.data.encoded import RECORDS, EncodedRows
from gradalign.errors import GradAlignWarning


def rows(value, count=1000):
    return EncodedRows.of({"age": np.full(count, value, "int32")}, {"buy": np.zeros(count, "float32")})


def test_what_is_kept_is_found_under_its_key(tmp_path):
    cache = Cache(tmp_path / "new" / "cache")
    assert cache.rows("a") is None and cache.learnt("a") is None
    cache.keep_rows("a", rows(1))
    cache.keep_learnt("a", {"x": [1.5, None, "ü"]})
    cache.keep_rows("a", rows(1))  # as another run would
    for one in (cache, Cache(tmp_path / "new" / "cache")):
        np.testing.assert_array_equal(one.rows("a").records, rows(1).records)
        assert one.learnt("a") == {"x": [1.5, None, "ü"]}
        assert one.rows("b") is None and one.learnt("b") is None
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o077 == 0  # what users train on is theirs


def test_what_is_damaged_is_a_miss_and_replaced(tmp_path):
    cache = Cache(tmp_path)
    cache.keep_rows("a", rows(1))
    cache.keep_learnt("a", [1])
    (tmp_path / "rows-a" / RECORDS).write_bytes(b"half")
    text = (tmp_path / "learnt-a.json").read_text()
    for damaged in (text[:-5], text.replace("[1]", "[2]"), "[]"):
        (tmp_path / "learnt-a.json").write_text(damaged)
        assert cache.learnt("a") is None
    assert cache.rows("a") is None
    cache.keep_rows("a", rows(1))
    cache.keep_learnt("a", [1])
    assert len(cache.rows("a")) == 1000 and cache.learnt("a") == [1]


def test_one_sentence_where_it_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file" / "cache")
    with pytest.warns(GradAlignWarning) as said:
        cache.keep_rows("a", rows(1))
    cache.keep_learnt("a", [1])  # it is said once
    [sentence] = [str(warning.message) for warning in said]
    assert f'The cache in "{tmp_path / "file" / "cache"}" cannot be written (' in sentence
    assert sentence.endswith("name another folder in GRADALIGN_CACHE, or set data.cache to false.")
    assert cache.rows("a") is None and cache.learnt("a") is None


def test_what_was_used_longest_ago_makes_room(tmp_path):
    size = rows(1).records.nbytes
    cache = Cache(tmp_path, limit=int(3.5 * size))
    for number, key in enumerate("abc"):
        cache.keep_rows(key, rows(number))
        os.utime(tmp_path / f"rows-{key}", (number, number))
    assert cache.rows("a") is not None  # used now
    cache.keep_rows("d", rows(4))
    assert {key for key in "abcd" if cache.rows(key) is not None} == {"a", "c", "d"}
    cache.keep_rows("large", rows(5, count=10_000))
    assert cache.rows("large") is None and cache.rows("a") is not None


def test_what_dead_writers_left_goes_and_what_live_ones_write_stays(tmp_path):
    cache = Cache(tmp_path)
    old, new = tmp_path / ".rows-a.x.partial", tmp_path / ".rows-a.y.partial"
    for folder in (old, new):
        folder.mkdir()
        (folder / RECORDS).write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    cache.keep_learnt("a", [1])
    assert not old.exists() and new.exists()


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADALIGN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("GRADALIGN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "gradalign"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "gradalign"


def test_keys_tell_facts_apart():
    facts = [("a", 1), ("a", "1"), ("a", 1, None), (["a", 1],), ("a", {"b": 1, "c": 2})]
    assert len({digest(*f) for f in facts}) == len(facts)
    assert digest({"b": 1, "c": 2}) == digest({"c": 2, "b": 1})
