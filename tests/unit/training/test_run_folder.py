"""Run folders: what counts as one, what may be replaced, and that the final name appears only at the end."""

from __future__ import annotations

import json

import pytest

from gradalign.errors import UserError
from gradalign.training import run_folder
from gradalign.training.run_folder import Run

FILES = ("config.yaml", "history.csv", "model.keras", "metrics.json", "preprocessing.json")


def _finished(folder, word="old"):
    (folder / "serving").mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(json.dumps(word))
    return folder


def _interrupted(folder):
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    return folder


def test_a_finished_run_opens(tmp_path):
    run = Run.open(_finished(tmp_path / "run", {"test": 1}))
    assert run.metrics == {"test": 1}


@pytest.mark.parametrize("missing", [*FILES, "serving"])
def test_a_folder_that_lacks_anything_is_not_a_run(missing, tmp_path):
    path = _finished(tmp_path / "run") / missing
    path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(UserError, match=f"is not a run folder: it has no {missing}"):
        Run.open(tmp_path / "run")


def test_an_interrupted_run_does_not_open(tmp_path):
    _interrupted(tmp_path / "run.partial")
    for name in ("run", "run.partial"):
        with pytest.raises(UserError, match=f"was interrupted.*--resume {tmp_path}/run$"):
            Run.open(tmp_path / name)


def test_the_current_folder_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder.partial_of(run_folder.Path()) == tmp_path.parent / (tmp_path.name + ".partial")
    with pytest.raises(UserError, match="is not a run folder"):
        Run.open(".")


def test_what_a_new_run_may_replace(tmp_path):
    free, run, other, empty, file = (tmp_path / name for name in ("free", "run", "other", "empty", "file"))
    _finished(run)
    other.mkdir()
    (other / "thesis.tex").touch()
    empty.mkdir()
    file.touch()
    for out in (free, empty):
        run_folder.refuse_if_taken(out, overwrite=False)
    run_folder.refuse_if_taken(run, overwrite=True)
    with pytest.raises(UserError, match=r"holds a run already.*--overwrite"):
        run_folder.refuse_if_taken(run, overwrite=False)
    for out in (other, file):
        with pytest.raises(UserError, match="left alone"):
            run_folder.refuse_if_taken(out, overwrite=True)


def test_an_interrupted_run_is_replaced_only_when_asked_to(tmp_path):
    partial = _interrupted(tmp_path / "run.partial")
    with pytest.raises(UserError, match=f"go on with `gradalign train --resume {tmp_path}/run`"):
        run_folder.refuse_if_taken(tmp_path / "run", overwrite=False)
    run_folder.refuse_if_taken(tmp_path / "run", overwrite=True)
    assert run_folder.create_partial(tmp_path / "run", overwrite=True) == partial
    assert list(partial.iterdir()) == []


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a run", "a run and what an older one left"])
def test_the_new_run_takes_its_name_at_the_end(there, tmp_path):
    out = tmp_path / "run"
    if there == "an empty folder":
        out.mkdir()
    elif there != "nothing":
        _finished(out)
        (out / "left_over").touch()
    if there == "a run and what an older one left":
        _finished(tmp_path / "run.old", "older")
    run_folder.finish(_finished(tmp_path / "run.partial", "new"), out)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert Run.open(out).metrics == "new" and not (out / "left_over").exists()


def test_which_interrupted_run_a_name_means(tmp_path):
    partial = _interrupted(tmp_path / "run.partial")
    for name in ("run", "run.partial"):
        assert run_folder.find_interrupted(tmp_path / name) == (partial, tmp_path / "run")
    _finished(tmp_path / "done")
    with pytest.raises(UserError, match="is finished, so there is nothing to resume"):
        run_folder.find_interrupted(tmp_path / "done")
    with pytest.raises(UserError, match="There is no interrupted run"):
        run_folder.find_interrupted(tmp_path / "nowhere")
