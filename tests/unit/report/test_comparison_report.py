"""The report of a comparison: differences as comparison.csv has them, in words that go by interval and corrected p."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gradalign.errors import UserError
from gradalign.report import write_comparison_report, write_report
from gradalign.report.comparison_files import Compared
from gradalign.report.comparison_verdict import difference_in_words
from gradalign.report.numbers import nice_ticks
from tests.unit.report.folders import HOSTILE, LONG, write_comparison, write_csv, write_run
from tests.unit.report.reading import read


def test_every_figure_is_from_the_files(tmp_path):
    page = read(write_comparison_report(write_comparison(tmp_path / "found")))
    for said in (
        f"Methods: none, single, adversarial, {HOSTILE}.",
        "Seeds: 0, 1, 2, 3, 4.",
        "adversarial against the plain sumbuy: AUC higher by 0.0023, which is better: 95 % interval +0.0011 to "
        "+0.0035, p corrected 0.012. In log loss, calibration and calibration error no difference can be told from 5 "
        "seeds.",
        f"{LONG}: AUC lower by 0.0040, which is worse: 95 % interval -0.0051 to -0.0029, p corrected below 0.001.",
        "buy: AUC higher by 0.00090, which is better: 95 % interval +0.00010 to +0.00170, but p corrected 0.120 for "
        "the number of comparisons, so 5 seeds are not enough to tell.",
        "the labels alone give away 61.0 %, a blind guess names 50.0 % and it names 93.0 % under the plain sum",
        "It takes 1.02 times the time and 1.02 times the memory of the plain sum.",
        "adversarial0.7344 ± 0.00120.4896 ± 0.0012",
        "Each method was given 2 trials",
        "adversarialalignment.weight=0.1",
        "runs/adversarial/seed-0",
        f"Warnings of the runsadversarial: Layer {HOSTILE} is frozen.adversarial: No probe: few labels.",
    ):
        assert said in page.text, said
    labels = "\n".join(page.labels)
    # Means over two seeds, and no curve of the single run's other task.
    assert "none: 0.6500 at epoch 1, 0.7200 at epoch 2. single: 0.6000 at epoch 1, 0.7000 at epoch 2." in labels
    assert "adversarial: 0.6600 at epoch 1, 0.7300 at epoch 2." in labels
    assert "adversarial: 0.0023, interval 0.0011 to 0.0035" in labels
    assert f"{LONG}: validation AUC by epoch. single: 0.6000 at epoch 1" in labels
    assert "none: 1.0200, seeds 1.0180, 1.0190, 1.0200, 1.0210, 1.0220" in labels
    assert "by decile of the prediction. none: 1.0100 at decile 1, 1.1000 at decile 10." in labels
    assert not {"script", "img"} & set(page.elements)
    assert {link for link in page.links if link[0] != "#"} == {
        "data:,",
        *(f"runs/{m}/seed-0/report.html" for m in ("none", "adversarial")),
    }


def test_without_run_folders_and_trials(tmp_path):
    text = read(write_report(write_comparison(tmp_path / "found", with_runs=False, trials=False))).text
    assert "there are no curves" in text and "Warnings" not in text
    assert "every method ran as it was configured (trials: 2)" in text
    assert "A fresh probe names the task of 94.9 % of the gradients, where it names 93.0 % under the plain sum;" in text


def test_a_method_alone_may_have_been_tuned(tmp_path):
    found = write_comparison(tmp_path / "found", with_runs=False, trials=False)
    asked = (found / "comparison.yaml").read_text().replace('"trials": 2', '"trials": 0')
    (found / "comparison.yaml").write_text(asked)
    assert "Nothing was tuned" in read(write_report(found)).text
    write_csv(found / "trials.csv", ["method", "trial", "value"], [["weights", 0, 0.7], ["weights", 1, 0.6]])
    assert "Only weights was tuned" in read(write_report(found)).text


def test_the_reports_of_its_runs_are_written_again(tmp_path):
    """They were written before their probes."""
    found = write_comparison(tmp_path / "found", with_runs=False)
    run = write_run(found / "runs" / "none" / "seed-0")
    page = read(write_report(found))
    assert "runs/none/seed-0/report.html" in page.links
    assert "0.9312 (0.9201 to 0.9423)" in read(run / "report.html").text


def test_a_comparison_that_is_not_finished_is_said(tmp_path):
    found = write_comparison(tmp_path / "found")
    (found / "comparison.csv").unlink()
    with pytest.raises(UserError, match=r"is not finished: it has no comparison\.csv; give the same"):
        write_report(found)


ROW = Compared("m", "t", "log_loss", 5, 0.4, 0.001, -0.002, -0.003, -0.001, 0.001, 0.01)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "log loss lower by 0.0020, which is better: 95 % interval -0.0030 to -0.0010, p corrected 0.010."),
        ({"metric": "calibration"}, "calibration lower by 0.0020: 95 %"),
        ({"metric": "auc"}, "AUC lower by 0.0020, which is worse: 95 %"),
        ({"p_corrected": 0.05}, "but p corrected 0.050 for the number of comparisons, so 5 seeds are not enough"),
        ({"p_corrected": None}, "but p corrected no value"),
        ({"high": 0.0}, "no difference in log loss can be told from 5 seeds: -0.0020"),
        ({"low": None, "high": None, "seeds": 1}, "without an interval nothing can be told (1 seed)."),
        # A method against itself.
        (
            {"difference": 0.0, "low": 0.0, "high": 0.0, "p_corrected": 1.0},
            "no difference in log loss can be told from 5 seeds: 0.0000",
        ),
    ],
)
def test_words_go_by_interval_and_corrected_p(changes, said):
    assert said in difference_in_words(dataclasses.replace(ROW, **changes)).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("most", [2, 4, 8])
@pytest.mark.parametrize(
    ("low", "high"), [(0.7231, 0.7239), (-3e-5, 8e-5), (0.5, 3.5), (899.0, 12e4), (-1.1, 1.1), (0, 1)]
)
def test_ticks_are_few_round_and_inside(low, high, most):
    ticks, decimals = nice_ticks(low, high, most)
    assert 1 <= len(ticks) <= most and all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    written = [f"{tick:.{decimals}f}" for tick in ticks]
    assert len(set(written)) == len(ticks) and all(
        math.isclose(float(w), t) for w, t in zip(written, ticks, strict=True)
    )
