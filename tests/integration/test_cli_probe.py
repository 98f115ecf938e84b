"""`gradalign probe`: a table, a verdict, and two files in the run folder."""

from __future__ import annotations

import html
import json
import shutil

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradalign.training import run as training_run
from gradalign.training.build import initial_model
from gradalign.training.run_folder import Run
from tests.integration.conftest import invoke, shop_table


def test_a_run_is_probed_and_its_figures_are_written(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "run")
    done = invoke("probe", run)
    assert done.exit_code == 0, done.output
    found = json.loads((run / "probe.json").read_text())
    for words in (
        "chance, blind          0.5000",
        "label-aware",
        f"{found['accuracy']:.4f}",
        "buy",
        "like",
        "Wasserstein",
    ):
        assert words in done.stdout
    assert done.stdout.splitlines()[-2] == found["verdict"]
    assert found["normalize"] == "batch" and found["rows"]["test"] == 45  # of the test part's 90 rows, all with "buy"
    picture = (run / "probe.svg").read_text("utf-8")
    assert "first principal component" in picture and "before training" in picture and "after training" in picture
    report = (run / "report.html").read_text("utf-8")
    assert "Gradients before training" in report and "Gradients after training" in report
    assert html.escape(found["verdict"]) in report
    assert {path.name for path in run.iterdir()} - {path.name for path in trained.run.iterdir()} == {
        "probe.json",
        "probe.svg",
        "probe_points.csv",
    }
    points = (run / "probe_points.csv").read_text().splitlines()
    assert points[0] == "moment,task,first,second" and len(points) == 1 + 2 * sum(found["gradients"].values())
    before, after = ([line.split(",")[1:] for line in points if line.startswith(m)] for m in ("before", "after"))
    assert before != after and [point[0] for point in before] == [point[0] for point in after]


def test_the_picture_before_training_is_at_the_weights_that_training_begins_with(trained, tmp_path, monkeypatch):
    class AboutToTrain(Exception):
        pass

    begun = []

    def stop(prepared, model, *others):
        begun.append(model.base.get_weights())
        raise AboutToTrain

    monkeypatch.setattr(training_run, "_fit", stop)
    with pytest.raises(AboutToTrain):
        invoke("train", trained.shop.config, "--out", tmp_path / "again")
    run = Run.open(trained.run)
    keras.utils.set_random_seed(99)
    initial = initial_model(run.config, run.preprocessing(), run.metrics["training"]["steps"]).base.get_weights()
    assert sum(np.array_equal(one, other) for one, other in zip(initial, *begun, strict=True)) == len(initial)
    assert not all(np.array_equal(*pair) for pair in zip(initial, run.model().base.get_weights(), strict=True))


def test_another_file_and_what_it_lacks(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "run")
    rows = shop_table(200, 5)
    pq.write_table(rows, tmp_path / "new.parquet")
    done = invoke("probe", run, "--data", tmp_path / "new.parquet", "--normalize", "l2", "--rows", 120)
    assert done.exit_code == 0 and 'normalize="l2"' in done.stdout and "on 60 test rows" in done.stdout
    before = (run / "probe.json").read_bytes()
    unlabelled = rows.set_column(rows.column_names.index("liked"), "liked", pa.nulls(200, pa.string()))
    pq.write_table(unlabelled, tmp_path / "new.parquet")
    done = invoke("probe", run, "--data", tmp_path / "new.parquet")
    assert (
        done.exit_code == 2 and 'Error: Task "like" has 0 gradients' in done.stderr and "give more rows" in done.stderr
    )
    assert (run / "probe.json").read_bytes() == before
