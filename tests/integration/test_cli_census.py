"""The bundled config on its own data, as `make train` runs it but for the number of rows and epochs."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gradalign.cli import main
from gradalign.training.run_folder import Run


@pytest.mark.slow
@pytest.mark.usefixtures("quick_training")
def test_the_bundled_config_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limits = ["data.limit=2048", "training.epochs=1", "training.batch_size=512", "training.learning_rate=3e-3"]
    settings = [word for key in limits for word in ("--set", key)]
    done = CliRunner().invoke(main, ["train", "census-income", *settings], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    metrics = Run.open("runs/census-income").metrics
    assert list(metrics["test"]) == ["income", "college", "never_married"]
    assert all(task["rows"] == 2048 and task["auc"] > 0.6 for task in metrics["test"].values())
    assert metrics["alignment"]["second_to_first_order_ratio"] >= 0.01
    assert metrics["alignment"]["chance"] == pytest.approx(1 / 3)
