"""An interrupted run: it never looks finished, and resumed it ends at the weights of one that was not interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gradalign.training import checkpoint, run_folder
from gradalign.training.config_file import load_config
from gradalign.training.run import train
from gradalign.training.run_folder import Run

EPOCHS = ["--set", "training.epochs=12"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, trained):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert trained.shop.invoke("train", trained.shop.config, "--out", out, *EPOCHS).exit_code == 0
    return Run.open(out)


def _variables(run):
    """Everything that goes on: weights, both optimizers, the schedule's step, the seeds of dropout."""
    model = run.model()
    variables = [*model.variables, *model.optimizer.variables, *model.discriminator_optimizer.variables]
    return [v.numpy() for v in variables if v.dtype != "string"]


# A suite that was started in the background ignores interrupts, and what it starts inherits that.
COMMAND_LINE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradalign.cli import main
main()
"""


def _kill_after_an_epoch(shop, out, sent):
    """Train in a process of its own and send it a signal once the first checkpoint is there."""
    command = [sys.executable, "-c", COMMAND_LINE, "train", str(shop.config), "--out", str(out), *EPOCHS]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    partial = out.with_name(out.name + ".partial")
    deadline = time.monotonic() + 120
    while not list(partial.glob("checkpoint-*.keras")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(shop, uninterrupted):
    out = shop.folder / "run"
    _kill_after_an_epoch(shop, out, signal.SIGKILL)
    assert not out.exists()
    done = len(checkpoint.last_checkpoint(run_folder.partial_of(out))[1])
    assert 1 <= done < 12, "the signal came too late to interrupt anything"

    refused = shop.invoke("evaluate", out)
    assert refused.exit_code == 2 and "was interrupted" in refused.stderr

    resumed = shop.invoke("train", "--resume", out)
    assert resumed.exit_code == 0 and f"after epoch {done} of 12" in resumed.stderr
    assert not run_folder.partial_of(out).exists()
    run = Run.open(out)
    assert not list(out.glob("*checkpoint*"))
    for one, other in zip(_variables(run), _variables(uninterrupted), strict=True):
        np.testing.assert_array_equal(one, other)
    assert run.metrics["test"] == uninterrupted.metrics["test"]
    assert run.metrics["alignment"] == uninterrupted.metrics["alignment"]
    assert run.metrics["training"]["steps"] == uninterrupted.metrics["training"]["steps"]
    assert _history(run) == _history(uninterrupted)


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(shop):
    out = shop.folder / "run"
    code, said = _kill_after_an_epoch(shop, out, signal.SIGINT)
    assert code == 130 and "Traceback" not in said
    assert said.splitlines()[-1] == f"Interrupted; go on with: gradalign train --resume {out}"
    assert not out.exists()
    assert checkpoint.last_checkpoint(run_folder.partial_of(out))[0] is not None


def _history(run):
    rows = checkpoint._from_csv((run.path / run_folder.HISTORY).read_text())
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class _Stop(BaseException):
    """Stands for a power cut."""


def _cut_off(monkeypatch, shop, out, overwrite=False, **patches):
    """Train until one of run.py's functions is called, and stop dead there."""

    def stop(*arguments, **named):
        raise _Stop

    with monkeypatch.context() as patch:
        for name, target in patches.items():
            patch.setattr(target, name, stop)
        with pytest.raises(_Stop):
            train(load_config(shop.config), out, overwrite=overwrite)


def test_a_run_cut_off_before_its_first_epoch_starts_again(shop, monkeypatch, trained):
    from gradalign.training import run

    out = shop.folder / "run"
    _cut_off(monkeypatch, shop, out, _fit=run)
    assert not out.exists()
    refused = shop.invoke("train", shop.config, "--out", out)
    assert refused.exit_code == 2 and "--resume" in refused.stderr
    assert shop.invoke("train", "--resume", str(out) + ".partial").exit_code == 0
    for one, other in zip(_variables(Run.open(out)), _variables(Run.open(trained.run)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_cut_off_while_it_is_finished_only_finishes(shop, monkeypatch, trained):
    out = shop.folder / "run"
    _cut_off(monkeypatch, shop, out, finish=run_folder)
    assert not out.exists()
    resumed = shop.invoke("train", "--resume", out)
    assert resumed.exit_code == 0 and "epoch 1/2" not in resumed.stderr
    assert Run.open(out).metrics["test"] == Run.open(trained.run).metrics["test"]


def test_an_old_run_stays_until_the_new_one_is_complete(shop, monkeypatch, trained):
    from gradalign.training import run

    out = shop.folder / "run"
    shutil.copytree(trained.run, out)
    before = (out / "metrics.json").read_bytes()
    _cut_off(monkeypatch, shop, out, overwrite=True, _fit=run)
    assert (out / "metrics.json").read_bytes() == before
    assert run_folder.find_interrupted(out) == (run_folder.partial_of(out), out)


def test_a_history_ahead_of_its_checkpoint_is_cut(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n1,0.5\n2,0.4\n3,0.3\n")
    (tmp_path / "checkpoint-00002.keras").write_bytes(b"")
    (tmp_path / "writing.checkpoint-00003.keras").write_bytes(b"half")
    path, history = checkpoint.last_checkpoint(tmp_path)
    assert path == tmp_path / "checkpoint-00002.keras"
    assert history == [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": 0.4}]
