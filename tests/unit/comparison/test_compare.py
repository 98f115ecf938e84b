"""A comparison whose runs are made up: its files, going on after a kill, and what is refused."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from gradalign.comparison import plan as plans
from gradalign.comparison.compare import compare
from gradalign.comparison.methods import methods_named
from gradalign.comparison.plan import Plan, locked
from gradalign.comparison.tables import printed
from gradalign.errors import UserError
from tests.unit.comparison.fakes import Fake, small_config

FILES = ("comparison.yaml", "comparison.csv", "comparison.md", "results.csv", "calibration.csv")


def _plan(names="single,mmd", seeds=3, trials=0, *overrides):
    config = small_config(*overrides)
    return Plan(config, tuple(methods_named(names, config)), seeds, trials)


def _compare(plan, folder, fake):
    return compare(plan, folder, 2, Console(file=io.StringIO()), lambda lock: fake)


def _texts(folder, names=FILES):
    return {name: (folder / name).read_text() for name in names}


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Made-up runs have no history to draw."""
    from gradalign.comparison import compare as room

    monkeypatch.setattr(room, "write_comparison_report", lambda folder: folder / "report.html")


def test_its_files(tmp_path):
    done = _compare(_plan(), tmp_path / "c", Fake())
    with (tmp_path / "c" / "comparison.csv").open() as file:
        rows = {(r["method"], r["task"], r["metric"]): r for r in csv.DictReader(file)}
    assert list(rows)[:3] == [("none", "sparse", "auc"), ("single", "sparse", "auc"), ("mmd", "sparse", "auc")]
    # 0.001 off at the learning rate, seeds 0, 1, 2 add 0, 0.001, 0.004; mmd adds 0.02 times its weight of 0.1
    assert float(rows["none", "sparse", "auc"]["mean"]) == pytest.approx(0.599 + 0.005 / 3)
    mmd = rows["mmd", "dense", "auc"]
    assert float(mmd["difference"]) == pytest.approx(0.002) and float(mmd["p_corrected"]) < 1e-6
    assert (rows["single", "dense", "auc"]["difference"], rows["single", "dense", "auc"]["p_corrected"]) == (
        "0.0",
        "1.0",
    )
    assert list(rows["none", "sparse", "auc"].values())[6:] == [""] * 5
    assert float(rows["single", "", "seconds"]["mean"]) == 5.0  # two runs of 2.5 seconds
    assert float(rows["single", "", "memory_mb"]["mean"]) == 500.0  # one after the other
    assert ("single", "", "probe_accuracy") not in rows and ("mmd", "", "probe_accuracy") in rows
    with (tmp_path / "c" / "results.csv").open() as file:
        results = list(csv.DictReader(file))
    assert list(results[0]) == ["method", "seed", "task", "metric", "value"]
    assert len(results) == 3 * 3 * (2 * 2 + 4)
    text = (tmp_path / "c" / "comparison.md").read_text()
    for words in ("No method was tuned", "corrected by Holm", "| auc | mmd |", "- mmd: Mind the gap.", "0.50 | 1.25 |"):
        assert words in text, words
    assert done.warnings == {name: ["Mind the gap."] for name in ("none", "single", "mmd")}
    assert printed(done.rows, "c").row_count == sum(
        row.metric in ("auc", "log_loss") or not row.task for row in done.rows
    )


def test_the_same_command_goes_on_after_a_kill_and_ends_with_the_same_tables(tmp_path):
    plan = _plan("weights,mmd", 2, 3)
    _compare(plan, tmp_path / "whole", whole := Fake())
    with pytest.raises(KeyboardInterrupt):
        _compare(plan, tmp_path / "cut", cut := Fake(interrupt=12))
    assert not (tmp_path / "cut" / "comparison.csv").exists()
    _compare(plan, tmp_path / "cut", rest := Fake())
    ended = [name for name in cut.started if name not in cut.killed]
    assert len(whole.started) == 15 and not set(ended) & set(rest.started)
    assert sorted(ended + rest.started) == sorted(whole.started)
    names = (*FILES, "trials.csv")
    assert _texts(tmp_path / "whole", names) == _texts(tmp_path / "cut", names)
    _compare(plan, tmp_path / "cut", again := Fake())
    assert again.started == []


def test_tuned_settings_are_those_of_the_runs(tmp_path):
    """The made-up AUC is highest where the learning rate is 0.003 and the weight is large."""
    _compare(_plan("mmd", 2, 5), tmp_path / "c", Fake())
    with (tmp_path / "c" / "trials.csv").open() as file:
        trials = [row for row in csv.DictReader(file) if row["method"] == "mmd"]
    best = max(trials, key=lambda row: float(row["value"]))
    config = (tmp_path / "c" / "runs" / "mmd" / "seed-1" / "config.yaml").read_text()
    for key in ("training.learning_rate", "alignment.weight"):
        value = best["parameters"].split(f'"{key}": ')[1].split(",")[0].rstrip("}")
        assert f"{key.split('.')[1]}: {value}\n" in config
    assert "- mmd: training.learning_rate" in (tmp_path / "c" / "comparison.md").read_text()


def test_another_comparison_in_the_same_folder_is_refused(tmp_path):
    _compare(_plan(), tmp_path, Fake())
    others = {
        "with seeds 3, and this command has 4": _plan(seeds=4),
        "with trials 0, and this command has 1": _plan(trials=1),
        r'with methods \["none", "single", "mmd"\], and this command has': _plan("mmd,single"),
        "with config.training.epochs 2, and this command has 9": _plan("single,mmd", 3, 0, "training.epochs=9"),
        'config.data.group null, and this command has "user"': _plan("single,mmd", 3, 0, "data.group=user"),
    }
    for said, other in others.items():
        with pytest.raises(UserError, match=f"{said}.*choose another --out"):
            _compare(other, tmp_path, Fake())


def test_a_file_that_changed_since_is_another_comparison(tmp_path):
    (tmp_path / "m.yaml").write_text("alignment: {weight: 0.2}")
    _compare(_plan(str(tmp_path / "m.yaml")), tmp_path / "c", Fake())
    (tmp_path / "m.yaml").write_text("alignment: {weight: 0.3}")
    with pytest.raises(UserError, match=r"with methods\.m\.alignment\.weight 0\.2, and this command has 0\.3"):
        _compare(_plan(str(tmp_path / "m.yaml")), tmp_path / "c", Fake())


def test_a_folder_with_something_else_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is no comparison"):
        _compare(_plan(), tmp_path, Fake())
    with pytest.raises(UserError, match="exists and is no comparison"):
        _compare(_plan(), tmp_path / "mine.txt", Fake())
    monkeypatch.setattr(plans, "_PATIENCE", 0.0)
    with locked(tmp_path / "c"), pytest.raises(UserError, match="Another `gradalign compare` is at work"):
        _compare(_plan(), tmp_path / "c", Fake())


def test_one_seed_is_said_to_give_no_interval(tmp_path):
    done = _compare(_plan(seeds=1), tmp_path, Fake())
    assert "neither a spread nor an interval" in (tmp_path / "comparison.md").read_text()
    row = next(row for row in done.rows if row.method == "mmd" and row.metric == "auc")
    assert (row.difference, row.low, row.p, row.sd) == (pytest.approx(0.002), None, None, None)
