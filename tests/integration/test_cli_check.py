"""`gradalign check`: it names a dead second-order path and its mend, for a config and for a run."""

from __future__ import annotations

import pytest

DEAD = ["--set", "model.activation=relu", "--set", "alignment.normalize=l2"]


def test_a_live_path(trained):
    done = trained.shop.invoke("check", trained.shop.config)
    assert done.exit_code == 0, done.output
    assert "dead" not in done.stdout.lower() and "buy" in done.stdout and "like" in done.stdout


def test_a_run(trained):
    before = (trained.run / "model.keras").read_bytes()
    done = trained.shop.invoke("check", trained.run)
    assert done.exit_code == 0 and "buy" in done.stdout
    assert (trained.run / "model.keras").read_bytes() == before


def test_a_dead_path_is_said_with_its_mend(shop):
    done = shop.invoke("check", shop.config, *DEAD)
    assert done.exit_code == 1
    said = done.stdout.lower()
    assert "dead path" in said and "gelu" in said
    assert {path.name for path in shop.folder.iterdir()} == {"train.parquet", "test.parquet", "shop.yaml"}


@pytest.mark.usefixtures("quick_training")
@pytest.mark.filterwarnings("default::gradalign.errors.GradAlignWarning")
def test_training_says_it_once_in_one_line(shop):
    steps = ["--set", "training.batch_size=300"]  # one in each of the two epochs
    done = shop.invoke("train", shop.config, "--out", shop.folder / "run", *DEAD, *steps)
    assert done.exit_code == 0
    warnings = [line for line in done.stderr.splitlines() if "dead path" in line.lower()]
    assert len(warnings) == 1 and warnings[0].startswith("Warning: ") and "gelu" in warnings[0]
