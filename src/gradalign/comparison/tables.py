"""A comparison for people: the table that is printed, and comparison.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from gradalign.comparison.methods import BASELINE, SINGLE
from gradalign.comparison.plan import Plan
from gradalign.comparison.results import OF_RUN, Compared, Deciles
from gradalign.comparison.tuning import Settings, budget_in_words

__all__ = ["markdown", "printed"]

_DIGITS = {"seconds": 1, "memory_mb": 0, "calibration": 3}
_PRINTED = ("auc", "log_loss", "gauc", "ndcg@10", *OF_RUN)  # the rest is in comparison.md
_TITLES = {"seconds": "seconds of training", "memory_mb": "peak memory, MB"}


def printed(rows: Sequence[Compared], folder: str) -> Table:
    """Return the table that is printed: a line for each method, task and main metric."""
    table = Table(title="Paired differences to the plain sum", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("task", "metric", "method", "mean ± sd", "difference (95 % interval)", "p, corrected"):
        table.add_column(name, justify="left" if name in ("task", "metric", "method") else "right")
    before = None
    for row in rows:
        if row.metric not in _PRINTED:
            continue
        if before is not None and before != (row.task, row.metric):
            table.add_section()
        is_new = before != (row.task, row.metric)
        before = (row.task, row.metric)
        names = (row.task or "whole run", _title(row.metric)) if is_new else ("", "")
        table.add_row(*names, row.method, *_cells(row))
    table.caption = f"{_seeds_in_words(rows)} More in {folder}."
    table.caption_justify = "left"
    return table


def markdown(
    plan: Plan,
    rows: Sequence[Compared],
    deciles: Sequence[Deciles],
    chosen: Mapping[str, Settings],
    warnings: Mapping[str, Sequence[str]],
) -> str:
    """Return comparison.md.

    Args:
        plan: of the comparison.
        rows: what was compared.
        deciles: calibration by decile.
        chosen: {method: what tuning set}.
        warnings: {method: what its runs warned of}.
    """
    names = ", ".join(method.name for method in plan.methods)
    lines = [f"# Comparison: {plan.config.name}", ""]
    lines += [f"Methods: {names}. Measured on the test part. {_seeds_in_words(rows)} {_pairs_in_words(plan)}", ""]
    lines += [f"Tuning: {budget_in_words(plan)}", ""]
    for method, settings in chosen.items():
        if settings:
            lines.append(f"- {method}: {', '.join(f'{key} {value:.4g}' for key, value in settings.items())}")
    lines += [""] if any(chosen.values()) else []
    for task in dict.fromkeys(row.task for row in rows):
        lines += [f"## {task}" if task else "## Cost and gradients", ""]
        header = ["metric", "method", "mean ± sd", "difference (95 % interval)", "p", "p, corrected"]
        body = [[_title(row.metric), row.method, *_cells(row, with_p=True)] for row in rows if row.task == task]
        lines += _table(header, body)
    lines += ["## Calibration by decile", "", "Predicted / observed, means over seeds, by rising prediction.", ""]
    for task in dict.fromkeys(decile.task for decile in deciles):
        of_task = [decile for decile in deciles if decile.task == task]
        most = max(decile.decile for decile in of_task)
        body = []
        for method in dict.fromkeys(decile.method for decile in of_task):
            own = {decile.decile: decile for decile in of_task if decile.method == method}
            body.append([method, *(_ratio(own.get(number)) for number in range(1, most + 1))])
        lines += _table([task, *map(str, range(1, most + 1))], body)
    if any(warnings.values()):
        lines += ["## Warnings", ""]
        lines += [f"- {method}: {said}" for method, sentences in warnings.items() for said in sentences]
        lines.append("")
    return "\n".join(lines)


def _seeds_in_words(rows: Sequence[Compared]) -> str:
    most = max((row.seeds for row in rows), default=0)
    if most == 1:
        return "One seed, which gives neither a spread nor an interval: take --seeds 5 or more."
    return (
        f"Means over {most} seeds; differences are paired by seed, intervals and p are those of a paired t-test, and "
        "p is corrected by Holm over the methods and tasks of each metric."
    )


def _pairs_in_words(plan: Plan) -> str:
    single = any(method.name == SINGLE for method in plan.methods)
    said = "Each seed has the same initial weights and batches for every method that changes neither model nor batches."
    cost = (
        f" A method's seconds are those of its training, and for {SINGLE}, which trains a model for each task, the "
        "sum; its memory is that of the largest, as they are trained one after another."
    )
    return said + (cost if single else "")


def _title(metric: str) -> str:
    return _TITLES.get(metric, metric.replace("_", " "))


def _cells(row: Compared, with_p: bool = False) -> list[str]:
    """Mean ± sd, difference with its interval, and p."""
    digits = _DIGITS.get(row.metric, 4)
    spread = "" if row.sd is None else f" ± {row.sd:.{digits}f}"
    difference = ""
    if row.difference is not None:
        finer = digits + 1 if digits else 0
        difference = f"{row.difference:+.{finer}f}"
        if row.low is not None and row.high is not None:
            difference += f" ({row.low:+.{finer}f} to {row.high:+.{finer}f})"
    elif row.method == BASELINE:
        difference = "-"
    p = [_p(row.p)] if with_p else []
    return [f"{row.mean:.{digits}f}{spread}", difference, *p, _p(row.p_corrected)]


def _p(p: float | None) -> str:
    """A probability for a reader.

    >>> _p(0.0312), _p(0.00001), _p(None)
    ('0.031', '< 0.001', '')
    """
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _ratio(decile: Deciles | None) -> str:
    return "" if decile is None or decile.ratio is None else f"{decile.ratio:.2f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]
