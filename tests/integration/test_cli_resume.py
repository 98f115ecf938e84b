"""An interrupted run: it never looks finished, and resumed it ends at the weights of one that was not interrupted."""

from __future__ import annotations

import os
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

pytestmark = pytest.mark.usefixtures("no_first_batch_check")


def _variables(run):
    """Everything that goes on: weights, both optimizers, the schedule's step, the seeds of dropout."""
    model = run.model()
    variables = [*model.variables, *model.optimizer.variables, *model.discriminator_optimizer.variables]
    return [v.numpy() for v in variables if v.dtype != "string"]


# In the middle of its second epoch the run says so and waits to be killed. It is eager, as here, so that weights are
# equal to the last bit. All of that is set up where the command would load TensorFlow.
COMMAND_LINE = """
import time
from gradalign import cli

def wait(self, batch, logs=None):
    if self.history and batch == 1:
        print("waiting", flush=True)
        time.sleep(60)

def prepare(quiet=cli._quiet):
    quiet()
    from gradalign import MultiTaskModel
    from gradalign.diagnostics import first_batch
    from gradalign.training.checkpoint import Checkpoint
    fit = MultiTaskModel.fit
    def fit_eagerly(self, *args, **kwargs):
        self.run_eagerly = True
        return fit(self, *args, **kwargs)
    MultiTaskModel.fit = fit_eagerly
    first_batch._sentences = lambda model, batch: []
    Checkpoint.on_train_batch_end = wait

cli._quiet = prepare
cli.main()
"""


def _kill(*arguments):
    """Run `gradalign` in a process of its own, kill it in its second epoch of two, and return what it said."""
    command = [sys.executable, "-c", COMMAND_LINE, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "waiting\n", process.communicate()[1]
    process.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    return said


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


@pytest.mark.slow
@pytest.mark.usefixtures("quick_training")
def test_a_run_cut_off_three_times_ends_as_one_that_was_not(shop, monkeypatch):
    """Before its first epoch, after which it starts again; killed in its second, with which it goes on; and while it is
    finished, after which it only finishes.

    Its config is the one that another run saved, and its folder another: it ends as that run.
    """
    from gradalign.training import run

    monkeypatch.chdir(shop.folder)
    out, partial = Path("again"), Path("again.partial")
    settings = ["--set", "training.monitor_every=2", "--set", "training.batch_size=100"]
    assert shop.invoke("train", shop.config, "--out", "first", *settings).exit_code == 0
    shutil.copy("first/config.yaml", "copy.yaml")
    with _stopping(monkeypatch, _fit=run):
        shop.invoke("train", "copy.yaml", "--out", out)
    assert not out.exists() and checkpoint.last_checkpoint(partial) == (None, [])
    refused = shop.invoke("train", "copy.yaml", "--out", out)
    assert refused.exit_code == 2 and "--resume" in refused.stderr

    said = _kill("train", "--resume", "again")
    assert said.splitlines()[-1].startswith("epoch 1/2")
    assert not any(word in said for word in ("cuda", "WARNING", "E0000", "I0000", "rebuild TensorFlow")), said
    assert not out.exists()
    [first_epoch] = checkpoint.last_checkpoint(partial)[1]
    refused = shop.invoke("evaluate", out)
    assert refused.exit_code == 2 and "was interrupted" in refused.stderr

    with _stopping(monkeypatch, finish=run_folder):
        shop.invoke("train", "--resume", partial)
    assert not out.exists()
    assert checkpoint.last_checkpoint(partial)[1][0] == first_epoch  # with its seconds: it was not trained again

    resumed = shop.invoke("train", "--resume", out)
    assert resumed.exit_code == 0 and "after epoch 2 of 2" in resumed.stderr
    assert "epoch 1/2" not in resumed.stderr and "epoch 2/2" not in resumed.stderr
    assert not partial.exists() and not list(out.glob("*checkpoint*"))
    again, first = Run.open(out), Run.open("first")
    for one, other in zip(_variables(again), _variables(first), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.metrics["test"] == first.metrics["test"]
    assert again.metrics["alignment"] == first.metrics["alignment"]
    assert again.metrics["training"]["steps"] == first.metrics["training"]["steps"]
    assert _history(again) == _history(first)


@pytest.mark.usefixtures("quick_training")
def test_ctrl_c_says_how_to_go_on(shop, monkeypatch):
    def interrupt(self, batch, logs=None):
        if self.history:
            signal.raise_signal(signal.SIGINT)

    out = shop.folder / "run"
    monkeypatch.setattr(checkpoint.Checkpoint, "on_train_batch_end", interrupt)
    # A suite that was started in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        settings = ["--set", "alignment.method=none", "--set", "training.batch_size=150"]  # two steps an epoch
        done = shop.invoke("train", shop.config, "--out", out, *settings)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"Interrupted; go on with: gradalign train --resume {out}"
    assert not out.exists()
    assert len(checkpoint.last_checkpoint(run_folder.partial_of(out))[1]) == 1


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
