"""Bad input: one sentence on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

TRAIN = {
    "a config that is not there": (["nope.yaml"], ['There is no config "nope.yaml"']),
    "no config": ([], ["Name a config"]),
    "an unknown key": (["shop.yaml", "--set", "training.epoch=1"], ['Did you mean "training.epochs"?']),
    "a wrong type": (["shop.yaml", "--set", "training.epochs=many"], ['training.epochs is "many"', "whole number"]),
    "a negative weight": (["shop.yaml", "--set", "alignment.weight=-1"], ["alignment.weight is -1", "0 or more"]),
    "a negative loss weight": (["shop.yaml", "--set", "tasks.buy.loss_weight=-2"], ["tasks.buy.loss_weight is -2"]),
    "a label among the features": (
        ["shop.yaml", "--set", "features.numeric=[bought]"],
        ['"bought" is the label of task "buy"'],
    ),
    "a training file that is not there": (["shop.yaml", "--set", "data.train=no.parquet"], ["no.parquet"]),
    "a file of unknown kind": (["shop.yaml", "--set", "data.train=shop.yaml"], ["neither Parquet nor CSV"]),
    "a label column that is not there": (
        ["shop.yaml", "--set", "tasks.buy.label=bougt"],
        ['"bougt"', 'Did you mean "bought"?'],
    ),
    "a feature that is not there": (["shop.yaml", "--set", "features.numeric=[agee]"], ['"agee"', '"age"?']),
    "a positive value that never occurs": (
        ["shop.yaml", "--set", "tasks.buy.positive=7"],
        ['Task "buy"', "7 never occurs", '"bought"'],
    ),
    "a label with one value": (
        ["shop.yaml", "--set", "tasks.buy.label=one", "--set", "data.train=constant.parquet"],
        ['"one" holds one value only'],
    ),
    "a Parquet file cut in half": (["shop.yaml", "--set", "data.test=half.parquet"], ["half.parquet", "cut short"]),
    "a column that only the training file has": (["shop.yaml", "--set", "data.test=few.parquet"], ['"city"']),
    "a task named like a column": (["shop.yaml", "--set", "tasks.city={label: bought, positive: 1}"], ['"city"']),
    "a folder as config": (["."], ["is a folder"]),
    "an --out for interrupted runs": (["shop.yaml", "--out", "a.partial"], ["a.partial", "--out"]),
    "an --out below a file": (["shop.yaml", "--out", "shop.yaml/run"], ["shop.yaml/run.partial"]),
    "a resume with a config": (["shop.yaml", "--resume", "a"], ["--resume", "without CONFIG"]),
    "a resume of nothing": (["--resume", "nowhere"], ["no interrupted run", "nowhere"]),
    "broken YAML": (["broken.yaml"], ["broken.yaml is not valid YAML", "line 2"]),
}


@pytest.fixture
def messy(shop, monkeypatch):
    """The shop's folder as the current one, with some files that are wrong."""
    monkeypatch.chdir(shop.folder)
    train, test = (shop.folder / f"{part}.parquet" for part in ("train", "test"))
    table = pq.read_table(train)
    pq.write_table(table.append_column("one", pa.array([1] * table.num_rows)), "constant.parquet")
    (shop.folder / "half.parquet").write_bytes(test.read_bytes()[: test.stat().st_size // 2])
    pq.write_table(pq.read_table(test).drop_columns(["city"]), "few.parquet")
    (shop.folder / "broken.yaml").write_text("data: {train: a\ntasks: }")
    return shop


def _tree(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def _refused(shop, arguments, words):
    before = _tree(shop.folder)
    result = shop.invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert _tree(shop.folder) == before
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("case", TRAIN)
def test_train(case, messy):
    arguments, words = TRAIN[case]
    _refused(messy, ["train", *arguments], words)


def test_check(messy):
    _refused(messy, ["check", "nope.yaml"], ['There is no config "nope.yaml"'])
    _refused(messy, ["check", "shop.yaml", "--set", "alignment.method=none"], ["alignment.method is none"])
    _refused(messy, ["check", "."], ["is not a run folder"])


@pytest.mark.parametrize("command", [["evaluate"], ["export"], ["predict", "--data", "test.parquet", "--out", "o.csv"]])
def test_a_run_that_is_none(command, messy):
    name, *options = command
    _refused(messy, [name, "nowhere", *options], ['There is no run folder "nowhere"'])
    _refused(messy, [name, ".", *options], ["is not a run folder: it has no config.yaml"])
    _refused(messy, [name, "shop.yaml", *options], ["is not a run folder"])


PREDICT = {
    "no file": (["--data", "no.parquet", "--out", "o.csv"], ["There is no file", "no.parquet"]),
    "half a file": (["--data", "half.parquet", "--out", "o.csv"], ["half.parquet", "cut short"]),
    "a missing column": (["--data", "few.parquet", "--out", "o.csv"], ['"city"', "few.parquet"]),
    "an --out of unknown kind": (["--data", "test.parquet", "--out", "o.txt"], [".parquet or .csv"]),
    "an --out that is there": (["--data", "test.parquet", "--out", "few.parquet"], ["--overwrite"]),
    "an --out that is the data": (
        ["--data", "test.parquet", "--out", "test.parquet", "--overwrite"],
        ["file to score"],
    ),
    "an --out that is a folder": (["--data", "test.parquet", "--out", "folder.csv"], ["is a folder"]),
    "lists into a CSV": (["--data", "test.parquet", "--out", "o.csv"], ['The column "tags" holds lists', ".parquet"]),
    "text where numbers were": (["--data", "words.csv", "--out", "o.csv"], ["words.csv"]),
    "both score columns taken": (["--data", "taken.parquet", "--out", "o.parquet"], ['"buy"', '"buy_score"']),
}


@pytest.mark.parametrize("case", PREDICT)
def test_predict(case, messy, trained):
    (messy.folder / "folder.csv").mkdir()
    table = pq.read_table("test.parquet")
    words = table.drop_columns(["tags", "visits"]).append_column("visits", pa.array(["many"] * table.num_rows))
    pyarrow.csv.write_csv(words, "words.csv")
    taken = pa.array([0.0] * table.num_rows)
    pq.write_table(table.append_column("buy", taken).append_column("buy_score", taken), "taken.parquet")
    arguments, said = PREDICT[case]
    _refused(messy, ["predict", trained.run, *arguments], said)


@pytest.mark.parametrize("damage", ["cut", "changed", "text"])
def test_a_damaged_model(messy, trained, damage):
    shutil.copytree(trained.run, "run")
    model = messy.folder / "run" / "model.keras"
    whole = model.read_bytes()
    middle = len(whole) // 2
    model.write_bytes(
        {"cut": whole[:middle], "changed": whole[:middle] + b"x" * 64 + whole[middle + 64 :], "text": b"no model"}[
            damage
        ]
    )
    for arguments in (["predict", "run", "--data", "test.parquet", "--out", "o.parquet"], ["check", "run"]):
        _refused(messy, arguments, ["model.keras", "is damaged"])


def test_evaluate(messy, trained):
    _refused(messy, ["evaluate", trained.run, "--data", "few.parquet"], ['"city"', "few.parquet"])
    pq.write_table(pq.read_table("test.parquet").drop_columns(["liked"]), "unlabelled.parquet")
    _refused(messy, ["evaluate", trained.run, "--data", "unlabelled.parquet"], ['"liked"', "unlabelled.parquet"])


def test_export(messy, trained):
    _refused(messy, ["export", trained.run, "--out", "."], ["--overwrite"])
    _refused(messy, ["export", trained.run, "--out", ".", "--overwrite"], ["left alone"])
    _refused(messy, ["check", trained.run, "--set", "training.epochs=1"], ["--set changes a config"])
