"""`gradalign compare`: killed half-way and started again, it repeats no finished run and ends with the same table."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import time
import types

import pytest

from gradalign.comparison import compare, processes
from gradalign.comparison.one_run import perform
from gradalign.training import checkpoint
from tests.integration.conftest import invoke

SETTINGS = ["rows=240", "validation_rows=40", "test_rows=80", "fields=3", "categories=4", "users=12"]
COMMAND = ["compare", "synthetic", "--methods", "adversarial", "--seeds", "2", "--jobs", "1"]
for setting in (
    *(f"data.synthetic.{setting}" for setting in (*SETTINGS, "labelled_share={sparse: 0.5, dense: 1.0}")),
    *("data.group=user", "model.towers=[4]", "training.batch_size=240", "training.epochs=2"),
):
    COMMAND += ["--set", setting]

# The run of adversarial, seed 0, says so in its second epoch and waits to be killed. All runs are eager, as here, and
# leave out what the comparison does not look at: the served model and the second-order check.
CHILD = """
import time
from pathlib import Path
from types import SimpleNamespace
from gradalign import MultiTaskModel
from gradalign.comparison import one_run
from gradalign.diagnostics import first_batch
from gradalign.training import run
from gradalign.training.checkpoint import Checkpoint

fit = MultiTaskModel.fit

def fit_eagerly(self, *args, **kwargs):
    self.run_eagerly = True
    return fit(self, *args, **kwargs)

def wait(self, batch, logs=None):
    if self.history and "adversarial" in str(self._folder):
        Path(self._folder.parents[1], "waiting").touch()
        time.sleep(60)

MultiTaskModel.fit = fit_eagerly
Checkpoint.on_train_batch_end = wait
run.write_serving = lambda preprocessing, base, folder: folder.mkdir()
run.report = lambda *arguments: SimpleNamespace(second_to_first=None)
first_batch._sentences = lambda model, batch: []
one_run.main()
"""
PARENT = f"""
import sys
from gradalign import cli
from gradalign.comparison import processes
processes.COMMAND = (sys.executable, "-c", {CHILD!r})
cli.main()
"""


class _Done:
    """A job that ran in this process, where TensorFlow is loaded already."""

    def __init__(self, folder, job):
        self.log = folder
        perform(job)

    def poll(self):
        return 0

    def kill(self):
        pass


@pytest.fixture
def in_this_process(monkeypatch):
    from gradalign.training import run

    started = []
    monkeypatch.setattr(run, "report", lambda *arguments: types.SimpleNamespace(second_to_first=None))

    def start(folder, at_once, lock):
        return lambda job: started.append(job.name) or _Done(folder, job)

    monkeypatch.setattr(compare, "Processes", start)
    return started


def _times(folder):
    """When each file of a run was written; its report is made anew with the comparison's."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "report.html"}


def _rows(folder):
    with (folder / "comparison.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["metric"] not in ("seconds", "memory_mb")]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_training", "no_first_batch_check", "grappler")  # which the killed process has too
def test_killed_half_way_it_goes_on_and_ends_with_the_same_table(tmp_path, in_this_process):
    folder = tmp_path / "cut"
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, *COMMAND, "--out", str(folder)], stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while not (folder / "runs" / "waiting").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    _, said = process.communicate(timeout=60)
    assert said.startswith("1/4  none, seed 0: "), said
    finished = folder / "runs" / "none" / "seed-0"
    first = _times(finished)
    interrupted = folder / "runs" / "adversarial" / "seed-0.partial"
    [epoch] = checkpoint.last_checkpoint(interrupted)[1]
    assert not (folder / "comparison.csv").exists()

    # The killed command's run has ended by itself: else the folder would be locked.
    done = invoke(*COMMAND, "--out", folder)
    assert done.exit_code == 0, done.output
    assert in_this_process == ["adversarial, seed 0", "none, seed 1", "adversarial, seed 1"]
    assert _times(finished) == first
    history = (folder / "runs" / "adversarial" / "seed-0" / "history.csv").read_text()
    assert checkpoint._from_csv(history)[0] == epoch  # with its seconds: it was not trained again
    assert {"report.html", "comparison.md", "results.csv", "comparison.yaml"} <= {p.name for p in folder.iterdir()}
    for words in ("Paired differences", "adversarial", "sparse", "gauc", "ndcg@10", "probe accuracy", "peak memory"):
        assert words in done.stdout, words

    whole = tmp_path / "whole"  # of which the second seed, which nothing has disturbed, need not be trained again
    for method in ("none", "adversarial"):
        shutil.copytree(folder / "runs" / method / "seed-1", whole / "runs" / method / "seed-1")
    shutil.copy(folder / "comparison.yaml", whole)
    in_this_process.clear()
    invoke(*COMMAND, "--out", whole)
    assert in_this_process == ["none, seed 0", "adversarial, seed 0"]
    assert _rows(whole) == _rows(folder)
    assert {row["metric"] for row in _rows(whole)} == {
        *("auc", "log_loss", "calibration", "calibration_error", "gauc", "ndcg@10"),
        *("probe_accuracy", "discriminator_accuracy"),
    }
    in_this_process.clear()
    assert invoke(*COMMAND, "--out", whole).exit_code == 0 and in_this_process == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope.yaml"], 'There is no config "nope.yaml"'),
        (["synthetic", "--methods", "adversarail"], 'Did you mean "adversarial"'),
        (["synthetic", "--out", "file"], '"file" exists and is no comparison'),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = invoke("compare", *arguments)
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


FAILING = """
from gradalign.comparison import one_run
from gradalign.errors import UserError

def fail(job):
    raise UserError(f"There is no file {job.name}.csv.")

one_run.perform = fail
one_run.main()
"""


def test_a_run_that_fails_is_named_with_what_it_said(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, "-c", FAILING))
    done = invoke("compare", "synthetic", "--jobs", "1", "--out", tmp_path / "c")
    assert done.exit_code == 2
    said = "Error: The run none, seed 0 failed: There is no file none, seed 0.csv. All that it said is in "
    assert done.stderr.startswith(said) and "none-seed-0.log" in done.stderr and done.stderr.count("\n") == 1
