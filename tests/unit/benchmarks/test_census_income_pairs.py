"""`benchmarks/census_income_pairs.py` on a few rows: what it runs, writes and finds done."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from gradalign.training.build import prepare
from gradalign.training.config import validate
from gradalign.training.rows import read_tables

pytestmark = [
    pytest.mark.usefixtures("no_first_batch_check"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config"),  # which leaves tf.data as it is
]
FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def pairs(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import census_income_pairs

    yield census_income_pairs
    sys.modules.pop("census_income_pairs")


@pytest.fixture
def prepared(tmp_path, pairs):
    rng = np.random.default_rng(0)
    columns = {"city": rng.choice(["Rome", "Oslo"], 16), **{task: rng.permutation([0, 1] * 8) for task in pairs.TASKS}}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    config = validate(
        {
            "name": "census",
            "data": dict.fromkeys(("train", "test", "validation"), str(tmp_path / "rows.parquet")),
            "tasks": {task: {"label": task, "positive": 1} for task in pairs.TASKS},
            "model": {"shared_dim": 2, "private_dim": 0, "towers": [3]},
            "training": {"batch_size": 8, "epochs": 1},
        }
    )
    return prepare(config, read_tables(config.data))


def test_a_run_is_written_and_read_again(pairs, prepared, tmp_path):
    tf.config.run_functions_eagerly(True)  # a trace for two steps takes seconds
    row = pairs.run_one(prepared, "adversarial", seed=3)
    assert 0 < float(row["discriminator_accuracy"]) < 1 and float(row["second_to_first_order_ratio"]) > 0
    pairs.write_results([row], tmp_path / "results.csv")
    [again] = pairs.read_results(tmp_path / "results.csv")
    assert again == {column: str(row[column]) for column in pairs.COLUMNS}
