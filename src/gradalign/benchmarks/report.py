"""The tables that are printed."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from gradalign.benchmarks.results import PEAK, CaseResult, Results, RowResult
from gradalign.benchmarks.timing import Spread

__all__ = ["case_table", "heading", "target_table"]


def heading(results: Results) -> str:
    """Return the line above all tables: versions, cores, rounds."""
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    machine, settings = results.machine, results.settings
    where = ", ".join(machine["gpus"]) or "no GPU"
    return (
        f"{machine['system']}, {machine['cores']} cores, {where}, load {machine['load']:.1f} before; {versions}\n"
        f"Medians (quartiles) of {settings['rounds']} rounds, {settings['steps']} steps a turn, all rows of a case in "
        "one process; ratios are taken within a round, to the plain or first row. FLOPs are those of matrix products, "
        "counted in the traced graph (PyTorch: as they run); peak memory is the largest resident set of a fresh "
        "process with this row alone, beyond what its libraries took."
    )


def case_table(case: CaseResult) -> Table:
    """Return the table of a case."""
    note = "" if case.complete else "  (interrupted)"
    table = Table(
        title=f"{case.case}: {case.what}{note}", title_justify="left", caption=_caption(case), box=box.SIMPLE_HEAD
    )
    table.caption_justify = "left"
    of_data = "rows/s" if case.baselines == ("bare-step",) else "GFLOP"
    for number, name in enumerate(("row", "ms", "ratio", of_data, "of peak", "MiB")):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in case.rows:
        if row.missing is None:
            table.add_row(row.row, *_cells(case, row))
    return table


def _cells(case: CaseResult, row: RowResult) -> Iterator[str]:
    yield _spread(row.time, 1e3, ".0f" if row.time and row.time.median > 0.1 else ".1f")
    yield _spread(case.ratio(row), 1.0, ".2f") if case.baselines else ""
    if case.baselines == ("bare-step",):
        yield f"{row.examples / row.time.median:,.0f}" if row.time else ""
    else:
        yield f"{row.flops / 1e9:.2f}" if row.flops else ""
    share = case.share_of_peak(row)
    yield f"{share:.0%}" if share else ""
    yield f"{row.memory_over_imports / 2**20:,.0f}" if row.memory_over_imports else ""


def _spread(of: Spread | None, scale: float, form: str) -> str:
    if of is None:
        return "no value"
    return f"{of.median * scale:{form}} ({of.lower * scale:{form}}–{of.upper * scale:{form}})"


def _caption(case: CaseResult) -> str:
    """Say what the rows are, why one is missing, and what the widths alone tell of the case."""
    lines = [f"{row.row}: {row.what}{f' (not measured: {row.missing})' if row.missing else ''}" for row in case.rows]
    facts = case.facts
    if "flops_above" in facts:
        parts = ", ".join(
            f"{letter} {facts[name] / 1e9:.3g}"
            for letter, name in (("E", "flops_below"), ("F", "flops_above"), ("D", "flops_discriminator"))
        )
        lines.append(
            f"forward GFLOP: {parts}; by matrix products alone, aligned / plain is {facts['bound_general']:.2f}, for "
            f"piecewise-linear towers {facts['bound_piecewise_linear']:.2f}"
        )
    if PEAK in facts:
        lines.append(f"peak: {facts[PEAK] / 1e9:.0f} GFLOP/s, a float32 matrix product")
    return "\n".join(lines)


def target_table(results: Results) -> Table:
    """Return the targets of the cases that were measured, with what was measured."""
    table = Table(title="Targets", title_justify="left", box=box.SIMPLE_HEAD)
    for number, name in enumerate(("what", "target", "measured", "")):
        table.add_column(name, justify="right" if number in (1, 2) else "left")
    measured = {case.case for case in results.cases}
    for target in results.targets():
        if target["case"] in measured:
            sign = "≥" if target["at_least"] else "≤"
            value = target["measured"]
            table.add_row(
                target["what"],
                f"{sign} {target['limit']:g}",
                "" if value is None else f"{value:.2f}",
                target["verdict"],
            )
    return table
