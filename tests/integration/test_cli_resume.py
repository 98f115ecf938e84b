"""An interrupted run: it never looks finished, and resumed it ends at the weights of one that was not interrupted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gradalign.training import checkpoint, run_folder
from gradalign.training.config_file import load_config
from gradalign.training.run import train
from gradalign.training.run_folder import Run


def _variables(run):
    """Everything that goes on: weights, both optimizers, the schedule's step, the seeds of dropout."""
    model = run.model()
    variables = [*model.variables, *model.optimizer.variables, *model.discriminator_optimizer.variables]
    return [v.numpy() for v in variables if v.dtype != "string"]


# A suite that was started in the background ignores interrupts, and what it starts inherits that. In the middle of its
# second epoch the run says so and waits for the signal.
COMMAND_LINE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradalign.cli import main
from gradalign.training.checkpoint import Checkpoint

def wait(self, batch, logs=None):
    if self.history and batch == 2:
        print("waiting", flush=True)
        time.sleep(60)

Checkpoint.on_train_batch_end = wait
main()
"""


def _interrupt(shop, out, sent, *options):
    """Train in a process of its own and send it a signal in the middle of the second epoch of two."""
    command = [sys.executable, "-c", COMMAND_LINE, "train", str(shop.config), "--out", str(out), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n", process.communicate()[1]
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(shop, trained):
    out, uninterrupted = shop.folder / "run", Run.open(trained.run)
    code, _ = _interrupt(shop, out, signal.SIGKILL)
    assert code == -signal.SIGKILL and not out.exists()
    assert len(checkpoint.last_checkpoint(run_folder.partial_of(out))[1]) == 1

    refused = shop.invoke("evaluate", out)
    assert refused.exit_code == 2 and "was interrupted" in refused.stderr

    resumed = shop.invoke("train", "--resume", out)
    assert resumed.exit_code == 0 and "after epoch 1 of 2" in resumed.stderr
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
    code, said = _interrupt(shop, out, signal.SIGINT, "--set", "alignment.method=none")  # quicker
    assert code == 130 and "Traceback" not in said
    assert said.splitlines()[-1] == f"Interrupted; go on with: gradalign train --resume {out}"
    assert not out.exists()
    assert checkpoint.last_checkpoint(run_folder.partial_of(out))[0] is not None


def _history(run):
    rows = checkpoint._from_csv((run.path / run_folder.HISTORY).read_text())
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class _Stop(BaseException):
    """Stands for a power cut."""


@contextmanager
def _stopping(monkeypatch, **patches):
    """Stop dead where one of these functions is called."""

    def stop(*arguments, **named):
        raise _Stop

    with monkeypatch.context() as patch:
        for name, target in patches.items():
            patch.setattr(target, name, stop)
        with pytest.raises(_Stop):
            yield


def test_a_run_from_the_saved_config_cut_off_twice(trained, tmp_path, monkeypatch):
    """Before its first epoch, after which it starts again; and while it is finished, after which it only finishes.

    Its config is the one that another run saved, and its folder another: it ends as that run.
    """
    from gradalign.training import run

    monkeypatch.chdir(tmp_path)
    shutil.copy(trained.run / "config.yaml", "copy.yaml")
    with _stopping(monkeypatch, _fit=run):
        trained.shop.invoke("train", "copy.yaml", "--out", "again")
    assert not Path("again").exists()
    refused = trained.shop.invoke("train", "copy.yaml", "--out", "again")
    assert refused.exit_code == 2 and "--resume" in refused.stderr
    with _stopping(monkeypatch, finish=run_folder):
        trained.shop.invoke("train", "--resume", "again.partial")
    assert not Path("again").exists()
    resumed = trained.shop.invoke("train", "--resume", "again")
    assert resumed.exit_code == 0 and "epoch 1/2" not in resumed.stderr
    again, first = Run.open("again"), Run.open(trained.run)
    for one, other in zip(_variables(again), _variables(first), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.metrics["test"] == first.metrics["test"]


def test_an_old_run_stays_until_the_new_one_is_complete(shop, monkeypatch, trained):
    from gradalign.training import run

    out = shop.folder / "run"
    shutil.copytree(trained.run, out)
    before = (out / "metrics.json").read_bytes()
    with _stopping(monkeypatch, _fit=run):
        train(load_config(shop.config), out, overwrite=True)
    assert (out / "metrics.json").read_bytes() == before
    assert run_folder.find_interrupted(out) == (run_folder.partial_of(out), out)


def test_a_history_ahead_of_its_checkpoint_is_cut(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n1,0.5\n2,0.4\n3,0.3\n")
    (tmp_path / "checkpoint-00002.keras").write_bytes(b"")
    (tmp_path / "writing.checkpoint-00003.keras").write_bytes(b"half")
    path, history = checkpoint.last_checkpoint(tmp_path)
    assert path == tmp_path / "checkpoint-00002.keras"
    assert history == [{"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": 0.4}]
