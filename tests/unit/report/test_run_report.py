"""The report of a run: every figure is from its files, what it did not record is said, and names stay text."""

from __future__ import annotations

import inspect
import json
import os

import pytest

from gradalign.callbacks import AdversaryGuard
from gradalign.diagnostics import report as check_report
from gradalign.errors import UserError
from gradalign.report import run_verdict, write_report, write_run_report
from tests.unit.report.folders import CONFIG, HOSTILE, LONG, write_csv, write_run
from tests.unit.report.reading import read


def test_every_figure_is_from_the_files(tmp_path):
    page = read(write_run_report(write_run(tmp_path / "run"), shown="/runs/my shop"))
    for said in (
        "GradAlign run shop",
        "The alignment made up 12.0 % of the gradient",
        "named the task of 82.0 % of the gradients, where a blind guess names 50.0 % and the labels alone give away "
        "62.5 %: it still tells the tasks' gradients apart.",
        "The probe tells the tasks' gradients apart & <more>.",
        f"The mean cosine of the gradients of buy and {LONG} went from -0.250 in the first epoch to +0.050 in the "
        "last.",
        "cannot be said from one run",
        "gradalign compare '/runs/my shop/config.yaml' --methods none,adversarial --seeds 5",
        "0.9312 (0.9201 to 0.9423)",
        "31,500",
        "3.25",  # seconds of a later epoch: the mean of 3 and 3.5
        "tensorflow2.21.0",
    ):
        assert said in page.text, said
    assert f"buy0.72350.481249,8813,0226.1 %{LONG}no value0.310060 60100.0 %".replace(" 60100", "60100") in page.text
    assert HOSTILE in page.text, "config.yaml as it stands"
    labels = "\n".join(page.labels)
    assert (
        "buy: AUC by epoch. validation: 0.6500 at epoch 1, 0.7251 at epoch 3. training: 0.6000 at epoch 1, 0.7500 at "
        "epoch 3." in labels
    )
    assert "all tasks: 0.9000 at epoch 1, 0.8200 at epoch 3. blind guess: 0.5000. labels alone: 0.6250." in labels
    assert f"Gradients before training. buy: 4 points, {LONG}: 4 points; 0 of them lie outside" in labels


def test_nothing_is_loaded_and_no_name_becomes_markup(tmp_path):
    run = write_run(tmp_path / "run", method=HOSTILE)
    (run / "config.yaml").write_text(CONFIG.replace("name: shop", f"name: '{HOSTILE}'"))
    page = read(write_run_report(run))
    assert not {"script", "img", "iframe", "object", "base"} & set(page.elements)
    assert {link for link in page.links if not link.startswith("#")} == {"data:,"}
    assert page.text.count(HOSTILE) >= 4


def test_what_a_run_did_not_record_is_said_with_the_command_that_does(tmp_path):
    run = write_run(tmp_path / "run", monitored=False, probed=False, label_aware_chance=None, share_of_gradient=None)
    (run / "config.yaml").write_text(CONFIG.replace("monitor_every: 50", "monitor_every: 0"))
    text = read(write_run_report(run)).text
    command = f"gradalign train {run}/config.yaml --set training.monitor_every=100 --out {run}-monitored"
    assert (
        f"What the labels alone give away was not recorded. A run records it where {'training.monitor_every'}" in text
    )
    assert "The gradients were not watched while the run trained. A run records it where" in text
    assert text.count(command) == 2
    assert f"No probe was run, so there is no picture. It is made by gradalign probe {run}" in text
    # 0.1 * 1.364 / (1 + 0.1 * 1.364)
    assert (
        "The alignment made up 12.0 % of the gradient at the shared representation (one batch of training rows" in text
    )


def test_a_probe_from_before_the_picture_had_two_sides(tmp_path):
    run = write_run(tmp_path / "run")
    write_csv(run / "probe_points.csv", ["moment", "task", "first", "second"], [["after training", "buy", 1, 2]])
    page = read(write_run_report(run))
    assert "left no picture of the gradients before training. It is made by gradalign probe" in page.text
    assert "Gradients after training" in page.text and "Gradients before training" not in page.text


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"method": "none", "discriminator_accuracy": None, "chance": None}, "it is the plain sum"),
        (
            {"method": "cosine", "discriminator_accuracy": None, "chance": None},
            "The alignment cosine has no discriminator",
        ),
        ({"discriminator_accuracy": 0.985}, "it is pinned"),
        ({"discriminator_accuracy": 0.515}, "it is at chance"),
        ({"discriminator_accuracy": 0.64}, "no better than the labels alone allow"),
        ({"discriminator_accuracy": 0.66}, "it still tells the tasks' gradients apart"),
        ({"discriminator_accuracy": 0.64, "label_aware_chance": None}, "was not recorded): it still tells"),
        (
            {"discriminator_accuracy": 0.64},
            "was at a loss, and the gradients were not made alike: a new classifier names 93.1",
        ),
        ({"share_of_gradient": 0.6}, "which is more than the tasks themselves"),
        ({"second_to_first_order_ratio": 1e-9}, "a dead path"),
    ],
)
def test_the_verdict_goes_by_the_figures(figures, said, tmp_path):
    assert said in read(write_run_report(write_run(tmp_path / "run", **figures))).text


def test_the_limits_are_those_of_the_guard_and_of_the_check():
    guard = inspect.signature(AdversaryGuard).parameters
    assert tuple(guard[name].default for name in ("ceiling", "chance_margin", "most_share")) == (
        run_verdict.PINNED,
        run_verdict.CHANCE_MARGIN,
        run_verdict.MOST_SHARE,
    )
    assert run_verdict.DEAD_BELOW == check_report.DEAD_BELOW


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("history.csv", "epoch,seconds\n", "has no epoch in it; train the run again"),
        ("history.csv", "epoch,seconds\n1,fast\n", 'its column "seconds" holds "fast", which is no number'),
        ("history.csv", "epoch,seconds\n1\n", "its line 2 has another number of cells"),
        ("history.csv", "epoch\n1\n", 'it has no column "seconds"'),
        ("metrics.json", "{", "it is not JSON"),
        ("metrics.json", "[]", "it holds no mapping"),
        ("metrics.json", "{}", 'it has no "test"'),
        ("probe.json", '{"accuracy": "high"}', "its \"accuracy\" is 'high', which is no number"),
        ("config.yaml", "a: [", "it is not YAML"),
    ],
)
def test_a_damaged_file_is_named(file, text, said, tmp_path):
    run = write_run(tmp_path / "run")
    (run / file).write_text(text)
    with pytest.raises(UserError) as raised:
        write_run_report(run)
    assert f'"{run / file}"' in str(raised.value) and said in str(raised.value)


def test_an_old_report_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    (run / "report.html").write_text("old")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match=r"cannot be written to .*: No space left"):
            write_run_report(run)
    assert (run / "report.html").read_text() == "old" and not list(run.glob(".writing*"))
    assert write_report(run).read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_folder_that_is_neither_is_said(tmp_path):
    with pytest.raises(UserError, match="neither a finished run nor a comparison"):
        write_report(tmp_path)


def test_versions_and_numbers_that_are_null_are_no_figures(tmp_path):
    run = write_run(tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["training"]["rows_per_second"] = None
    (run / "metrics.json").write_text(json.dumps(metrics))
    assert "rows a secondno value" in read(write_run_report(run)).text
