"""The benchmark from the names of its cases to its files."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gradalign.benchmarks.cases import Case, smaller
from gradalign.benchmarks.flops import forward_flops
from gradalign.benchmarks.keras_rows import wait
from gradalign.benchmarks.machine import describe, peak_flops_per_second, prepare_process, versions
from gradalign.benchmarks.peak_memory import peak_memory
from gradalign.benchmarks.registry import problem_for, rows_of
from gradalign.benchmarks.results import PEAK, CaseResult, Results, RowResult
from gradalign.benchmarks.row import Row
from gradalign.benchmarks.rows import PLAIN
from gradalign.benchmarks.start_up import START_UP_ROWS, start_up_seconds
from gradalign.benchmarks.timing import Timings

__all__ = ["run"]

BASELINES = {"steps": PLAIN, "tables": ("lazy-adam-small",), "input": ("bare-step",), "start-up": ()}
UNTIMED = {"steps": 1, "tables": 1, "input": 0}

Told = Callable[[str], object]


def run(
    cases: list[Case],
    *,
    rounds: int,
    steps: int,
    out: Path,
    small: bool,
    memory: bool,
    console: Console,
    show: Callable[[Results], object],
) -> Results:
    """Measure `cases` and write the results after each of them.

    Interrupted, it writes what was measured until then and raises `KeyboardInterrupt` again.

    Args:
        cases: in order.
        rounds: turns of every row.
        steps: timed steps of a turn.
        out: the folder for bench.json and bench.csv.
        small: small sizes, for trying the command out.
        memory: also run every row in a process of its own, for its peak memory.
        console: where progress is shown.
        show: called with everything so far after each case.
    """
    prepare_process()
    settings = {"cases": [case.name for case in cases], "rounds": rounds, "steps": steps, "small": small}
    results = Results(settings, versions(), describe())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for case in cases:
            task = progress.add_task(case.name, total=rounds)

            def told(what: str, name: str = case.name, task: TaskID = task) -> None:
                progress.update(task, description=f"{name}: {what}", advance=what == "rounds")

            try:
                _measure(results, smaller(case) if small else case, rounds, steps, small, memory, told)
            finally:
                results.write(out)
            progress.remove_task(task)
            show(results)
    return results


def _measure(results: Results, case: Case, rounds: int, steps: int, small: bool, memory: bool, told: Told) -> None:
    """Measure one case; what is known of it is in `results` from the start."""
    result = CaseResult(case.name, case.what, [], BASELINES[case.kind])
    results.cases.append(result)
    if case.kind == "start-up":
        result.rows = [RowResult(name, what) for name, what in START_UP_ROWS.items()]
        for _ in range(rounds):
            for row, seconds in zip(result.rows, start_up_seconds(case.name, small), strict=True):
                row.seconds.append(seconds)
            told("rounds")
        result.complete = True
        return
    kinds = rows_of(case)
    result.rows = [RowResult(name, kind.what, missing=kind.missing()) for name, kind in kinds.items()]
    measured = [row for row in result.rows if row.missing is None]
    if memory and case.kind != "input":
        for row in measured:
            told(f"memory of {row.row}")
            found = peak_memory(case.name, row.row, small)
            row.peak_memory, row.memory_over_imports = found.whole, found.over_imports
    told("preparing")
    problem = problem_for(case)
    result.facts = _facts(case, problem, small)
    built = {}
    for row in measured:
        told(f"building {row.row}")
        built[row.row] = kinds[row.row].make(problem)
        built[row.row].warm_up()  # traces and, once, compiles
        row.examples = problem.rows if case.kind == "input" else case.batch
    _count_flops(measured, built, told)
    timings = Timings(1 if case.kind == "input" else steps, UNTIMED[case.kind], wait=wait)

    def after_round() -> None:
        told("rounds")
        result.facts[PEAK] = max(result.facts[PEAK], peak_flops_per_second(_peak_size(small), 1))

    try:
        seldom = {name: (row.seldom, row.every) for name, row in built.items() if row.seldom is not None}
        timings.run({name: row.step for name, row in built.items()}, rounds, after_round, seldom)
        result.complete = True
    finally:
        for row in measured:
            row.seconds = timings.seconds[row.row]
    del built, problem
    gc.collect()


def _facts(case: Case, problem: Any, small: bool) -> dict[str, float]:
    """Return the machine's peak and, of a case of steps, its forward flops and what they bound an aligned step by."""
    peak = {PEAK: peak_flops_per_second(_peak_size(small), 4)}
    if case.kind != "steps":
        return peak
    flops = forward_flops(problem.network, case.batch)
    return {
        **peak,
        "flops_below": flops.below,
        "flops_above": flops.above,
        "flops_discriminator": flops.discriminator,
        "bound_general": flops.aligned / flops.plain,
        "bound_piecewise_linear": flops.aligned_piecewise_linear / flops.plain,
    }


def _peak_size(small: bool) -> int:
    return 64 if small else 2048


def _count_flops(rows: list[RowResult], built: dict[str, Row], told: Told) -> None:
    for row in rows:
        count = built[row.row].flops
        if count is not None:
            told(f"counting {row.row}")
            row.flops = count()
