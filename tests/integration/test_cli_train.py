"""`gradalign train`: what a run folder holds and what is never overwritten; one seed gives one run."""

from __future__ import annotations

import csv
import json

import pytest

from gradalign.training.config_file import load_config
from gradalign.training.run_folder import Run

FILES = {"config.yaml", "history.csv", "metrics.json", "model.keras", "preprocessing.json", "report.html", "serving"}


def test_a_run_folder_holds_what_the_documentation_says(trained):
    assert trained.printed.exit_code == 0
    assert {path.name for path in trained.run.iterdir()} == FILES
    assert {path.name for path in trained.shop.folder.iterdir()} == {
        "train.parquet",
        "test.parquet",
        "shop.yaml",
        "run",
    }

    metrics = json.loads((trained.run / "metrics.json").read_text())
    assert set(metrics) == {"test", "alignment", "training", "versions"}
    assert set(metrics["test"]) == {"buy", "like"}
    for task in metrics["test"].values():
        assert set(task) == {"auc", "log_loss", "rows", "positives"}
        assert 0.0 < task["auc"] < 1.0 and task["log_loss"] > 0.0 and 0 < task["positives"] < task["rows"] <= 90
    alignment = metrics["alignment"]
    assert alignment["method"] == "adversarial" and alignment["chance"] == 0.5
    assert 0.0 <= alignment["discriminator_accuracy"] <= 1.0
    assert alignment["second_to_first_order_ratio"] > 0.01
    assert 0.099 < alignment["strength"] < 0.1
    assert 0.5 <= alignment["label_aware_chance"] < 1.0 and 0.0 < alignment["share_of_gradient"] < 1.0
    training = metrics["training"]
    assert (training["epochs"], training["steps"]) == (2, 10)
    assert training["rows_per_second"] == pytest.approx(600 / training["seconds"], rel=0.01)
    assert {"gradalign", "tensorflow", "keras", "python"} <= set(metrics["versions"])


def test_the_history_has_one_row_an_epoch(trained):
    rows = list(csv.DictReader((trained.run / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert {"loss", "buy_loss", "buy_auc", "val_loss", "val_like_auc", "alignment_loss", "seconds"} <= set(rows[0])
    assert {"buy_gradient_norm", "buy_like_gradient_cosine", "like_discriminator_accuracy", "alignment_share"} <= set(
        rows[0]
    )
    seconds = json.loads((trained.run / "metrics.json").read_text())["training"]["seconds"]
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(seconds, abs=1e-3)


def test_the_report_calls_the_run_by_its_name(trained):
    """And not by that of the folder that it was written in."""
    report = (trained.run / "report.html").read_text("utf-8")
    assert f"gradalign probe {trained.run}<" in report and ".partial" not in report
    assert "Cosine of two tasks&#x27; gradients, mean over rows" in report


def test_what_is_printed(trained):
    said = trained.printed.stderr
    assert "inferred:" in said and "numeric, in buckets: fractions" in said
    assert "epoch 1/2" in said and "epoch 2/2" in said and "val_buy_auc" in said
    table = trained.printed.stdout
    for words in ("task", "AUC", "log loss", "positives", "buy", "like", "discriminator accuracy", "chance 0.5000"):
        assert words in table
    assert f"Run folder: {trained.run}" in table
    assert "Warning" not in said + table  # neither TensorFlow's, Keras' nor ours


def test_the_saved_config_says_what_was_inferred(trained):
    """And it trains the same run from any folder: `test_a_run_cut_off_three_times_ends_as_one_that_was_not`."""
    saved = load_config(trained.run / "config.yaml")
    assert saved.data.train == str(trained.shop.folder / "train.parquet")
    assert set(saved.features.numeric) == {"age", "visits"} and set(saved.features.multi_valued) == {"tags"}


@pytest.mark.usefixtures("quick_training")
def test_without_alignment_nothing_is_said_of_a_discriminator(shop, monkeypatch):
    monkeypatch.chdir(shop.folder)
    done = shop.invoke("train", shop.config, "--set", "alignment.method=none", "--set", "training.batch_size=150")
    assert done.exit_code == 0 and "discriminator" not in done.stdout + done.stderr
    alignment = Run.open("runs/shop").metrics["alignment"]
    assert alignment == {
        "method": "none",
        "strength": 0.0,
        "discriminator_accuracy": None,
        "chance": None,
        "label_aware_chance": None,
        "second_to_first_order_ratio": None,
        "share_of_gradient": None,
    }


def test_a_run_is_not_replaced_unasked(trained):
    before = (trained.run / "metrics.json").read_bytes()
    refused = trained.shop.invoke("train", trained.shop.config, "--out", trained.run)
    assert refused.exit_code == 2 and "--overwrite" in refused.stderr
    assert (trained.run / "metrics.json").read_bytes() == before


def test_a_folder_that_is_not_a_run_is_never_replaced(shop):
    for out in (shop.folder, shop.config):
        refused = shop.invoke("train", shop.config, "--out", out, "--overwrite")
        assert refused.exit_code == 2 and "left alone" in refused.stderr
    assert shop.config.exists()
