"""Data sets that a config names and no file holds: drawn ones, and Census-Income with few labels."""

from __future__ import annotations

import numpy as np
import pytest

from gradalign.data import labels
from gradalign.datasets.census_income import TASKS, training_table
from gradalign.training.config_file import load_config
from gradalign.training.evaluate import evaluate
from gradalign.training.rows import read_tables, synthetic_data
from gradalign.training.run_folder import Run
from tests.integration.conftest import invoke

SMALL = ["rows=900", "validation_rows=300", "test_rows=500", "fields=4", "categories=6", "users=20"]


@pytest.mark.usefixtures("quick_training")
def test_a_drawn_data_set_trains_and_is_drawn_again_for_evaluation(tmp_path):
    settings = [f"data.synthetic.{setting}" for setting in SMALL]
    settings += ["data.synthetic.labelled_share={sparse: 0.25, dense: 1}", "data.synthetic.noise=0.2"]
    settings += ["training.batch_size=450", "training.epochs=1", "model.towers=[4]", "alignment.method=none"]
    done = invoke("train", "synthetic", "--out", tmp_path / "run", *(s for x in settings for s in ("--set", x)))
    assert done.exit_code == 0, done.output
    run = Run.open(tmp_path / "run")
    assert evaluate(run) == run.metrics["test"]
    oracle = synthetic_data(run.config.data.synthetic).oracle_auc
    for task, found in run.metrics["test"].items():
        assert found["rows"] == 500 and found["auc"] < oracle[task], task


def test_parts_are_drawn_when_they_are_asked_for_and_told_apart_by_all_that_makes_them():
    def part(*settings):
        given = [f"data.synthetic.{setting}" for setting in (*SMALL, *settings)]
        return read_tables(load_config("synthetic", [*given, "data.limit=40"]).data).train

    assert part().table().num_rows == 40 and part().table().equals(part().table())
    assert part().identity == part().identity != part("seed=1").identity
    unlimited = read_tables(load_config("synthetic").data)
    assert "table" not in vars(unlimited.test.file) and not unlimited.is_streamed
    assert len({unlimited.train.identity, unlimited.validation.identity, unlimited.test.identity}) == 3


def test_a_config_names_few_labels_of_census_income():
    settings = ["data.labelled_rows={income: 30}", "data.limit=2000"]
    data = load_config("census-income", settings).data
    few, all_of_them = (read_tables(d).train for d in (data, load_config("census-income", settings[1:]).data))
    assert few.table().equals(training_table({"income": 30}, 0, 2000))
    assert {t: int(np.isfinite(y).sum()) for t, y in labels(few.table(), TASKS).items()} == {
        "income": 30,
        "college": 2000,
        "never_married": 2000,
    }
    seeded = read_tables(load_config("census-income", [*settings, "data.label_seed=1"]).data).train
    assert len({few.identity, seeded.identity, all_of_them.identity}) == 3
