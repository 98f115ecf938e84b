"""The page of a comparison: which method differs from the plain sum, in what, by how much and at which cost."""

from __future__ import annotations

from collections.abc import Sequence

from gradalign.report.comparison_files import BASELINE, Compared, ComparisonFiles
from gradalign.report.comparison_verdict import SIGNIFICANT, method_verdict
from gradalign.report.line_chart import Level, Line, line_chart
from gradalign.report.markup import Child, Html, breakable, join, tag
from gradalign.report.metric_names import decimals, heading, title
from gradalign.report.numbers import PERCENT, as_number, as_p, as_signed
from gradalign.report.page import (
    Section,
    bullets,
    code,
    folded,
    grouped,
    page,
    paragraph,
    preformatted,
    section,
    table,
)
from gradalign.report.strips import Strip, strips

__all__ = ["comparison_page"]

_COST = ("seconds", "memory_mb")
_PROBES = ("probe_accuracy", "discriminator_accuracy")


def comparison_page(found: ComparisonFiles, shown: str) -> str:
    """Return the report of a comparison as HTML.

    Args:
        found: its files.
        shown: the folder's path.
    """
    seeds = sorted({seed for of_row in found.results.values() for seed in of_row})
    lead = paragraph(
        f"Methods: {', '.join(found.methods)}. Tasks: {', '.join(found.tasks)}. Seeds: {', '.join(map(str, seeds))}. "
        "Folder: ",
        code(shown),
    )
    sections = [
        _verdict(found),
        _warnings(found),
        _results(found),
        _differences(found),
        _calibration(found),
        _probes(found),
        _curves(found),
        _cost(found),
        _tuning(found),
        _configuration(found),
        _runs(found),
    ]
    return page("GradAlign comparison", [lead], [made for made in sections if made is not None])


def _verdict(found: ComparisonFiles) -> Section:
    said: list[Html] = []
    for method in found.methods:
        if method != BASELINE:
            name = tag("h3", breakable(f"{method} against the plain sum"))
            said += [name, bullets([_of_task(*of_task) for of_task in method_verdict(found, method)])]
    if not said:
        said = [paragraph("There is no method beside the plain sum, so there is nothing to compare.")]
    note = paragraph(
        "Differences are paired: two runs of a pair share their seed, and with it initial weights and batches where a "
        "method changes neither model nor batches. A difference is told "
        f"where its 95{PERCENT} interval leaves out zero and its p, corrected for the number of comparisons, is below "
        f"{SIGNIFICANT}.",
        soft=True,
    )
    return section("verdict", "Verdict", tag("div", join(said), class_="verdict"), note)


def _of_task(task: str, sentences: str) -> Html:
    return join(tag("strong", breakable(f"{task}: ")) if task else None, sentences)


def _warnings(found: ComparisonFiles) -> Section | None:
    items = [f"{method}: {said}" for method, sentences in found.warnings().items() for said in sentences]
    return section("warnings", "Warnings of the runs", bullets(items)) if items else None


def _results(found: ComparisonFiles) -> Section:
    tables = []
    for task in found.tasks:
        metrics = found.metrics(task)
        rows: list[Sequence[Child]] = []
        for method in found.methods:
            cells = [_mean_and_sd(found.row(method, task, metric)) for metric in metrics]
            rows.append([method, *cells])
        tables += [table(f"{task}: mean ± sd over seeds.", ["method", *map(title, metrics)], rows)]
    note = "Calibration is predicted over observed: 1 is right. Calibration error is a mean over deciles."
    return section("results", "Results on the test part", tables, paragraph(note, soft=True))


def _mean_and_sd(row: Compared | None) -> str:
    if row is None or row.mean is None:
        return "no value"
    digits = decimals(row.metric, row.sd)
    return as_number(row.mean, digits) + ("" if row.sd is None else f" ± {as_number(row.sd, digits)}")


def _differences(found: ComparisonFiles) -> Section:
    parts: list[Html] = []
    for number, task in enumerate(found.tasks):
        figures = [_difference(found, task, metric, number) for metric in found.metrics(task)]
        drawn = [figure for figure in figures if figure is not None]
        if drawn:
            parts += [tag("h3", breakable(task)), grouped(drawn)]
    if not parts:
        parts = [paragraph("No method has a difference to the plain sum.")]
    return section("differences", "Paired differences to the plain sum", parts)


def _difference(found: ComparisonFiles, task: str, metric: str, number: int = 0) -> Html | None:
    rows = []
    for method in found.methods:
        row = found.row(method, task, metric)
        if row is None or row.difference is None:
            continue
        interval = None if row.low is None or row.high is None else (row.low, row.high)
        rows.append(Strip(method, row.difference, _difference_cell(row), interval))
    caption = f"{heading(metric)}: method minus plain sum, 95{PERCENT} interval"
    return strips(caption, rows, [Level("no difference", 0.0)], number % 8)


def _difference_cell(row: Compared) -> Html:
    if row.low is None or row.high is None:
        return join(as_signed(row.difference, decimals(row.metric, None)), ", no interval")
    digits = decimals(row.metric, (row.high - row.low) / 2)
    low, high = as_signed(row.low, digits), as_signed(row.high, digits)
    small = tag("small", f"p {as_p(row.p)}, corrected {as_p(row.p_corrected)}")
    return join(f"{as_signed(row.difference, digits)} ({low} to {high})", small)


def _calibration(found: ComparisonFiles) -> Section | None:
    figures = []
    for number, task in enumerate(found.tasks):
        levels = [Level("calibrated", 1.0)]
        figures.append(_by_seed(found, task, "calibration", f"{task}: predicted over observed", levels, number))
        lines = [Line(method, found.deciles.get((method, task), []), i) for i, method in enumerate(found.methods)]
        caption = f"{task}: predicted over observed by decile of the prediction"
        figures.append(line_chart(caption, lines, levels=levels, x_label="decile"))
    drawn = [figure for figure in figures if figure is not None]
    return section("calibration", "Calibration", _RINGS, grouped(drawn)) if drawn else None


_RINGS = paragraph("A dot is the mean over seeds, a ring one seed.", soft=True)


def _by_seed(
    found: ComparisonFiles, task: str, metric: str, caption: str, levels: Sequence[Level], number: int = 0
) -> Html | None:
    rows = []
    for method in found.methods:
        row = found.row(method, task, metric)
        if row is not None and row.mean is not None:
            seeds = list(found.results.get((method, task, metric), {}).values())
            rows.append(Strip(method, row.mean, _mean_and_sd(row), None, seeds))
    return strips(caption, rows, levels, number % 8)


def _probes(found: ComparisonFiles) -> Section:
    asked = "Can the tasks' gradients be told apart?"
    blind, aware = found.chances(BASELINE)
    levels = [Level("blind guess", blind), Level("labels alone, under the plain sum", aware)]
    figures = [
        _by_seed(found, "", metric, f"{heading(metric)} by method", levels, number)
        for number, metric in enumerate(_PROBES)
    ]
    drawn = [figure for figure in figures if figure is not None]
    if not drawn:
        return section("probe", asked, paragraph("No run was probed."))
    rows: list[Sequence[Child]] = []
    for method in found.methods:
        accuracy = found.row(method, "", "probe_accuracy")
        if accuracy is not None and accuracy.mean is not None:
            chances = (as_number(chance) for chance in found.chances(method))
            rows.append([method, _mean_and_sd(accuracy), *chances])
    note = paragraph(
        "The probe is a new classifier, trained after a run on its frozen gradients and judged on rows that neither "
        "has seen; the discriminator's accuracy is that of a run's last epoch. An accuracy up to what the labels alone "
        "give away says nothing about the representation.",
        soft=True,
    )
    header = ["method", "probe accuracy", "blind guess", "labels alone"]
    made = table("Balanced accuracy of the fresh probe beside both chances, means over seeds.", header, rows)
    return section("probe", asked, note, _RINGS, grouped(drawn), made if rows else None)


def _curves(found: ComparisonFiles) -> Section:
    charts = []
    for task in found.tasks:
        for metric, name in (("auc", "AUC"), ("loss", "loss")):
            lines = [
                Line(method, _mean_curve(found, method, f"val_{task}_{metric}"), i, dashed=i >= 8)
                for i, method in enumerate(found.methods)
            ]
            charts.append(line_chart(f"{task}: validation {name} by epoch", lines))
    drawn = [chart for chart in charts if chart is not None]
    said = (
        paragraph("Means over seeds, at epochs that all of a method's runs have.", soft=True)
        if drawn
        else paragraph("No run folder here has validation figures, so there are no curves.")
    )
    return section("curves", "Validation by epoch", said, grouped(drawn))


def _mean_curve(found: ComparisonFiles, method: str, column: str) -> list[tuple[float, float | None]]:
    curves = [dict(curve) for run in found.runs if run.method == method and (curve := run.curve(column))]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    return [(epoch, sum(curve[epoch] for curve in curves) / len(curves)) for epoch in shared]


def _cost(found: ComparisonFiles) -> Section:
    drawn = []
    for number, metric in enumerate(_COST):
        by_seed = _by_seed(found, "", metric, f"{heading(metric)} by method", [], number)
        drawn += [figure for figure in (by_seed, _difference(found, "", metric, number)) if figure is not None]
    if not drawn:
        return section("cost", "Cost", paragraph("Neither time nor memory was recorded."))
    return section("cost", "Cost", _RINGS, grouped(drawn))


def _tuning(found: ComparisonFiles) -> Section:
    trials = int(found.asked.get("trials") or 0)
    if not found.trials:
        said = paragraph(f"Nothing was tuned: every method ran as it was configured (trials: {trials}).")
        return section("tuning", "Tuning budget", said)
    by_method: dict[str, int] = {}
    for row in found.trials:
        by_method[row["method"]] = by_method.get(row["method"], 0) + 1
    if trials:
        said = paragraph(f"Each method was given {trials} trials, judged on the validation part.")
    else:
        tuned = ", ".join(by_method)
        said = paragraph(f"Only {tuned} was tuned, on the validation part; the others ran as they were configured.")
    counts: list[Sequence[Child]] = [[method, str(count)] for method, count in by_method.items()]
    header = list(found.trials[0])
    rows: list[Sequence[Child]] = [[row[name] for name in header] for row in found.trials]
    every = table("Every trial.", header, rows, texts=range(1, len(header)))
    made = table("Trials that were made.", ["method", "trials"], counts)
    return section("tuning", "Tuning budget", said, made, folded("All trials", every))


def _configuration(found: ComparisonFiles) -> Section:
    methods = found.asked.get("methods")
    rows: list[Sequence[Child]] = []
    if isinstance(methods, dict):
        rows = [[str(name), code(_in_one_line(overrides))] for name, overrides in methods.items()]
    made = table("What each method changes in the configuration.", ["method", "changes"], rows, texts=(1,))
    whole = folded("The whole comparison.yaml", preformatted("comparison.yaml", found.asked_text))
    return section("configuration", "Configuration", made if rows else None, whole)


def _in_one_line(overrides: object) -> str:
    if isinstance(overrides, dict):
        return ", ".join(f"{key}: {_in_one_line(value)}" for key, value in overrides.items()) or "nothing"
    if isinstance(overrides, list):
        return ", ".join(map(_in_one_line, overrides)) or "nothing"
    return "nothing" if overrides is None else str(overrides)


def _runs(found: ComparisonFiles) -> Section | None:
    items = []
    for run in found.runs:
        of_folder = run.path.relative_to(found.path).as_posix()
        report = run.path / "report.html"
        items.append(tag("a", of_folder, href=f"{of_folder}/report.html") if report.exists() else of_folder)
    if not items:
        return None
    return section("runs", "Runs", folded(f"{len(items)} run folders", bullets(items)))
