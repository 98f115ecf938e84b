"""The optimizers that a config names, on the variables of its model."""

from __future__ import annotations

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradalign.optimizers import EmbeddingsOptimizer, LazyAdagrad, LazyAdam, RowWiseAdagrad
from gradalign.training.build import build_model, prepare
from gradalign.training.config import validate
from gradalign.training.rows import read_tables


@pytest.fixture(params=["with a table", "numbers only"])
def prepared(request, tmp_path):
    columns = {"age": np.linspace(-1.0, 1.0, 8), "buy": [0, 1] * 4}
    if request.param == "with a table":
        columns["city"] = ["Rome", "Oslo"] * 4
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    files = dict.fromkeys(("train", "test", "validation"), str(tmp_path / "rows.parquet"))
    raw = {
        "name": "shop",
        "data": files,
        "tasks": {"purchase": {"label": "buy", "positive": 1}},
        "features": {"numeric": {"age": {"transform": "project"}}} if request.param == "numbers only" else {},
        "model": {"shared_dim": 2, "private_dim": 0, "towers": [3]},
        "alignment": {"method": "none"},
    }
    return prepare(validate(raw), read_tables(validate(raw).data)), request.param == "with a table"


def test_tables_have_the_optimizer_that_the_config_names(prepared):
    found, has_table = prepared
    kinds = {"lazy_adam": LazyAdam, "lazy_adagrad": LazyAdagrad, "row_wise_adagrad": RowWiseAdagrad, "adam": None}
    for name, kind in kinds.items():
        training = found.config.training.model_copy(update={"table_optimizer": name, "learning_rate": 0.25})
        config = found.config.model_copy(update={"training": training})
        optimizer = build_model(config, found.preprocessing, total_steps=4).optimizer
        if kind is None or not has_table:
            assert type(optimizer) is keras.optimizers.Adam and float(optimizer.learning_rate) == 0.25
            continue
        assert type(optimizer) is EmbeddingsOptimizer and type(optimizer.rest) is keras.optimizers.Adam
        assert type(optimizer.tables) is kind
        assert float(optimizer.rest.learning_rate) == float(optimizer.tables.learning_rate) == 0.25
