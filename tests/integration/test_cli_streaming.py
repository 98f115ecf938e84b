"""`gradalign train` on files that are read in parts: a run folder as ever, resumed to the same weights."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from gradalign.training import checkpoint, run, run_folder
from gradalign.training.config_file import load_config
from gradalign.training.evaluate import evaluate
from gradalign.training.run_folder import Run
from tests.integration.conftest import quicker_training

IN_PARTS = ["data.memory_gb=1e-6", "data.shuffle_buffer=100", "alignment.method=none", "training.batch_size=150"]


class _Stop(BaseException):
    """Stands for a power cut."""


@pytest.fixture(scope="module")
def streamed(tmp_path_factory, trained):
    out = tmp_path_factory.mktemp("streamed") / "run"
    settings = [word for key in IN_PARTS for word in ("--set", key)]
    with quicker_training():
        return out, trained.shop.invoke("train", trained.shop.config, "--out", out, *settings)


def test_a_run_on_files_in_parts_is_like_any_other(streamed, trained):
    out, printed = streamed
    assert printed.exit_code == 0, printed.output
    assert "in parts" in printed.stderr and "epoch 2/2" in printed.stderr and "inferred:" in printed.stderr
    assert {path.name for path in out.iterdir()} == {path.name for path in trained.run.iterdir()}
    assert [path.name for path in out.parent.iterdir()] == ["run"]
    found, wanted = Run.open(out), Run.open(trained.run)
    assert found.preprocessing().columns == wanted.preprocessing().columns
    assert found.config.data.memory_gb == 1e-6 and found.config.data.shuffle_buffer == 100
    for task, metrics in wanted.metrics["test"].items():
        assert metrics["rows"] == found.metrics["test"][task]["rows"]
        assert metrics["positives"] == found.metrics["test"][task]["positives"]
    assert found.metrics["training"]["steps"] == 4
    assert evaluate(found) == found.metrics["test"]
    test = trained.shop.folder / "test.parquet"
    assert evaluate(found, test)["buy"]["rows"] == 150


@pytest.mark.usefixtures("quick_training")
def test_cut_off_after_an_epoch_it_goes_on_to_the_same_weights(streamed, shop, monkeypatch):
    out = shop.folder / "run"

    def stop(*arguments, **named):
        raise _Stop

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "remove_checkpoints", stop)
        with pytest.raises(_Stop):
            run.train(load_config(shop.config, IN_PARTS), out)
    partial = run_folder.partial_of(out)
    assert len(checkpoint.last_checkpoint(partial)[1]) == 1
    assert sorted(path.name for path in (partial / "rows").iterdir()) == ["test", "train", "validation"]
    resumed = shop.invoke("train", "--resume", out)
    assert resumed.exit_code == 0 and "after epoch 1 of 2" in resumed.stderr
    whole, again = Run.open(streamed[0]), Run.open(out)
    for one, other in zip(whole.model().variables, again.model().variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert whole.metrics["test"] == again.metrics["test"]


def test_what_does_not_fit_is_said_before_anything_is_written(shop):
    path = shop.folder / "test.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["city"]), path)
    before = sorted(p.name for p in shop.folder.iterdir())
    settings = [word for key in IN_PARTS for word in ("--set", key)]
    refused = shop.invoke("train", shop.config, "--out", shop.folder / "run", *settings)
    assert refused.exit_code == 2 and '"city"' in refused.stderr and refused.stderr.count("\n") == 1
    assert sorted(p.name for p in shop.folder.iterdir()) == before
