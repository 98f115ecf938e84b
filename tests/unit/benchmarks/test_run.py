"""The command: what it writes, what it prints, and what is left of it when it is interrupted. Rows here are empty."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner

from gradalign.benchmarks import children, run
from gradalign.benchmarks.cases import CASES
from gradalign.benchmarks.graph_flops import graph_flops
from gradalign.benchmarks.peak_memory import PeakMemory
from gradalign.benchmarks.results import COLUMNS, CaseResult, Results, RowResult
from gradalign.benchmarks.row import Row, RowKind
from gradalign.benchmarks.start_up import START_UP_ROWS
from gradalign.benchmarks.targets import TARGETS
from gradalign.cli import main
from gradalign.errors import UserError


@pytest.fixture
def steps(monkeypatch):
    """Rows that do nothing but count their steps; a number in `stop` interrupts the step of that number."""
    taken, stop = [], []

    def step():
        taken.append(1)
        if len(taken) in stop:
            raise KeyboardInterrupt

    kinds = {
        "plain": RowKind("nothing", lambda problem: Row(step, flops=lambda: 6e6)),
        "aligned": RowKind("nothing either", lambda problem: Row(step, flops=lambda: 9e6)),
        "pytorch-plain": RowKind("PyTorch", lambda problem: Row(step), lambda: "PyTorch is not installed"),
    }
    monkeypatch.setattr(run, "rows_of", lambda case: kinds)
    monkeypatch.setattr(run, "peak_memory", lambda case, row, small: PeakMemory(900, {"plain": 300}.get(row, 450)))
    return taken, stop


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", "--quick", *map(str, arguments)], catch_exceptions=False)


def test_what_is_written_and_printed(steps, tmp_path):
    done = bench("--cases", "ranking, mmoe", "--rounds", 3, "--steps", 2, "--out", tmp_path / "bench")
    assert done.exit_code == 0, done.output
    assert len(steps[0]) == 2 * 2 * (1 + 3 * (1 + 2)), "cases × rows × (first + rounds × (untimed + timed))"
    assert sorted(p.name for p in (tmp_path / "bench").iterdir()) == ["bench.csv", "bench.json"]
    whole = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert whole["settings"] == {"cases": ["ranking", "mmoe"], "rounds": 3, "steps": 2, "small": True}
    assert whole["machine"]["cores"] >= 1 and {"tensorflow", "keras", "gradalign", "torch"} <= whole["versions"].keys()
    ranking = whole["cases"][0]
    assert ranking["complete"] and [len(row["seconds"]) for row in ranking["rows"]] == [3, 3, 0]
    with (tmp_path / "bench" / "bench.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert [(line["case"], line["row"]) for line in lines[:3]] == [
        ("ranking", "plain"),
        ("ranking", "aligned"),
        ("ranking", "pytorch-plain"),
    ]
    assert float(lines[0]["ratio"]) == 1.0 and lines[0]["rounds"] == "3" and lines[1]["memory_over_imports"] == "450"
    assert float(lines[1]["share_of_peak"]) > 0 and lines[2]["seconds"] == ""
    assert lines[2]["missing"] == "PyTorch is not installed"
    for words in ("not measured: PyTorch is not installed", "peak memory: aligned / plain", "1.50", "reached"):
        assert words in done.output
    assert "Parquet" not in done.output, "targets of cases that were not asked for"


def test_interrupted_it_keeps_what_was_measured(steps, tmp_path):
    steps[1].append(2 + 2 * 2 + 3)  # within the second of the first case's rounds
    done = bench("--cases", "ranking,mmoe", "--rounds", 5, "--steps", 1, "--out", tmp_path, "--no-memory")
    assert done.exit_code == 130
    assert f"Interrupted; what was measured until then is in {tmp_path}/bench.json" in done.output
    [case] = json.loads((tmp_path / "bench.json").read_text())["cases"]
    assert not case["complete"] and [len(row["seconds"]) for row in case["rows"]] == [1, 1, 0]


def test_a_case_that_is_not_there(tmp_path):
    done = bench("--cases", "rankin", "--out", tmp_path / "bench")
    assert done.exit_code == 2 and not (tmp_path / "bench").exists()
    assert (
        'There is no case "rankin"; the cases are ranking,' in done.output and 'Did you mean "ranking"' in done.output
    )


def test_the_baseline_is_the_faster_plain_step_and_ratios_are_paired():
    rows = [
        RowResult("plain", "", [2.0, 2.0, 9.0]),
        RowResult("plain-default", "", [1.0, 4.0, 1.0]),
        RowResult("aligned", "", [2.0, 4.0, 3.0]),
    ]
    case = CaseResult("ranking", "", rows, ("plain", "plain-default"))
    assert case.baseline == "plain-default"
    assert case.ratio(rows[2]).median == 2.0  # of 2, 1, 3; the medians' is 3
    [aligned_over_plain] = [t for t in TARGETS if t.case == "ranking" and (t.of, t.over) == ("aligned", "plain")][:1]
    assert aligned_over_plain.measured(case) == 2.0 and aligned_over_plain.verdict(2.0) == "missed"
    found = {t["what"]: t["verdict"] for t in Results({}, {}, {}, [case]).targets()}
    assert set(found.values()) == {"missed", "not measured"}


def test_targets_name_rows_and_cases_that_exist():
    from gradalign.benchmarks.registry import rows_of

    for target in TARGETS:
        case = CASES[target.case]
        known = START_UP_ROWS if case.kind == "start-up" else rows_of(case)
        assert {target.of, target.over or target.of} <= known.keys(), target.what


def test_flops_of_branches_and_functions():
    import tensorflow as tf

    a, b = tf.zeros([4, 5]), tf.zeros([5, 6])
    product = tf.function(lambda a, b: tf.matmul(b, a, transpose_a=True, transpose_b=True))

    def function(a, b, small):
        return tf.cond(small, lambda: tf.zeros([6, 4]), lambda: product(a, b))

    assert graph_flops(function, a, b, tf.constant(True), taken=0.25) == 0.75 * 2 * 4 * 5 * 6
    unknown = tf.TensorSpec([None, 5])
    with pytest.raises(UserError, match="shapes of the matrix product"):
        graph_flops(lambda x: x @ b, unknown)


def test_a_child_that_fails_is_said_and_one_that_ends_well_is_read():
    with pytest.raises(UserError, match=r"A process of the benchmark failed .*: ValueError: no"):
        children.run_process("-c", "raise ValueError('no')")
    done = children.run_process("-c", "import time; print('chatter'); print('{\"now\": %r}' % time.time())")
    assert done.started < done.result["now"] < done.ended
