"""A comparison from what was asked for to its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from gradalign.comparison import results
from gradalign.comparison.job import Job, run_job
from gradalign.comparison.plan import Plan, begin, locked
from gradalign.comparison.processes import Processes
from gradalign.comparison.results import Compared
from gradalign.comparison.schedule import Schedule, Start
from gradalign.comparison.tables import markdown
from gradalign.comparison.tuning import Trial, best, number_of_trials, tune
from gradalign.report import write_comparison_report
from gradalign.training.run_folder import write_text

__all__ = ["MARKDOWN", "Comparison", "compare"]

MARKDOWN = "comparison.md"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A finished comparison: its rows, and what its runs warned of, {method: sentences}."""

    folder: Path
    rows: list[Compared]
    warnings: dict[str, list[str]]


def compare(
    plan: Plan, folder: Path, at_once: int, console: Console, start: Callable[[int | None], Start] | None = None
) -> Comparison:
    """Run what is missing of a comparison, and write its tables.

    Args:
        plan: what is compared.
        folder: its folder; one that holds the same comparison goes on.
        at_once: processes that run at a time.
        console: where progress is shown.
        start: is given the lock's file descriptor and returns what starts a job; by default a process each.

    Raises:
        UserError: `folder` holds something else, or a run failed; what is finished stays.
    """
    with locked(folder) as lock:
        begin(plan, folder)
        starts = Processes(folder, at_once, lock) if start is None else start(lock)
        total = number_of_trials(plan) + len(plan.methods) * plan.seeds
        with Schedule(total, at_once, console, starts) as schedule:
            trials = tune(plan, folder, schedule.run)
            chosen = {method.name: best(trials, method) for method in plan.methods}
            jobs = {
                (method.name, seed): run_job(
                    plan, folder, method, method.config(plan.config, chosen[method.name]), seed
                )
                for seed in range(plan.seeds)
                for method in plan.methods
            }
            schedule.run(list(jobs.values()))
        found, warnings = _write(plan, folder, jobs, trials, chosen)
    write_comparison_report(folder)
    return Comparison(folder, found, warnings)


def _write(
    plan: Plan,
    folder: Path,
    jobs: dict[tuple[str, int], Job],
    trials: list[Trial],
    chosen: dict[str, dict[str, float]],
) -> tuple[list[Compared], dict[str, list[str]]]:
    all_results, all_deciles, warnings = [], [], dict[str, list[str]]()
    for method in plan.methods:
        of_seeds = []
        for seed in range(plan.seeds):
            of_run, deciles, said = results.results_of(method.name, seed, jobs[method.name, seed])
            all_results += of_run
            of_seeds.append(deciles)
            known = warnings.setdefault(method.name, [])
            known += [sentence for sentence in said if sentence not in known]
        all_deciles += results.mean_deciles(method.name, of_seeds)
    rows = results.compared(all_results)
    write_text(folder / MARKDOWN, markdown(plan, rows, all_deciles, chosen, warnings))
    results.write_results(folder, all_results, rows, all_deciles, trials)
    return rows, warnings
