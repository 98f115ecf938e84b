"""The page of a run: what was measured, how it came about, what it cost and with which settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from gradalign.report.cloud import cloud, edge_of
from gradalign.report.line_chart import Level, Line, line_chart
from gradalign.report.markup import Child, Html, tag
from gradalign.report.numbers import as_count, as_number, as_percent, mean
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
from gradalign.report.run_files import BEFORE_AND_AFTER, RunFiles
from gradalign.report.run_verdict import alignment_share, run_verdict

__all__ = ["configuration_table", "run_page"]

METRICS = {"auc": "AUC", "loss": "loss"}


def run_page(run: RunFiles, shown: str) -> str:
    """Return the report of a run as HTML.

    Args:
        run: its files.
        shown: the run's path, for the commands that the report names.
    """
    name, method = str(run.config.get("name")), str(run.metrics["alignment"].get("method"))
    lead = paragraph(
        f"Tasks: {', '.join(run.tasks)}. Alignment: {method}"
        + (f", weight {run.setting('alignment', 'weight')}" if method != "none" else "")
        + f". Seed {run.setting('training', 'seed')}. Folder: ",
        code(shown),
    )
    sections = [
        _verdict(run, shown),
        _test(run),
        _curves(run),
        _discriminator(run, method, shown),
        _gradients(run, shown),
        _picture(run, shown),
        _cost(run),
        _configuration(run),
    ]
    return page(f"GradAlign run {name}", [lead], sections)


def _verdict(run: RunFiles, shown: str) -> Section:
    method = str(run.metrics["alignment"].get("method"))
    compared = method if method != "none" else "adversarial"
    command = f"gradalign compare {shlex.quote(shown + '/config.yaml')} --methods none,{compared} --seeds 5"
    last = [
        "Whether the alignment changed the tasks' metrics cannot be said from one run: that takes pairs of runs from "
        "the same initial weights and batches, with and without it. ",
        code(command),
        " makes them.",
    ]
    return section("verdict", "Verdict", tag("div", bullets([*run_verdict(run), last]), class_="verdict"))


def _test(run: RunFiles) -> Section:
    rows = []
    for task in run.tasks:
        auc, loss, count, positives = (run.of_test(task, name) for name in ("auc", "log_loss", "rows", "positives"))
        share = positives / count if positives is not None and count else None
        rows.append([task, as_number(auc), as_number(loss), as_count(count), as_count(positives), as_percent(share)])
    header = ["task", "AUC", "log loss", "labelled rows", "positives", "share"]
    return section("test", "On the test part", table("Exact figures over the rows that have the label.", header, rows))


def _curves(run: RunFiles) -> Section:
    charts, unseen = [], []
    for number, task in enumerate(run.tasks):
        for metric, title in METRICS.items():
            lines = [
                Line("validation", run.curve(f"val_{task}_{metric}"), number),
                Line("training", run.curve(f"{task}_{metric}"), number, dashed=True),
            ]
            if not lines[0].points and metric == "auc":
                unseen.append(task)
            charts.append(line_chart(f"{task}: {title} by epoch", lines))
    drawn = [chart for chart in charts if chart is not None]
    said = [paragraph("Training figures are means over the epoch, while the model still changed.", soft=True)]
    if unseen:
        said.append(paragraph(f"No validation AUC was recorded for {', '.join(unseen)}."))
    names = list(run.history[0])
    epochs = [as_count(row["epoch"]) for row in run.history]
    rows = [[name, *(as_number(row[name]) for row in run.history)] for name in names if name != "epoch"]
    every = table("Every column of history.csv, by epoch.", ["figure", *epochs], rows)
    return section("curves", "The tasks by epoch", said, grouped(drawn), folded("All figures of all epochs", every))


def _discriminator(run: RunFiles, method: str, shown: str) -> Section:
    heading = "The discriminator against chance"
    accuracy = run.curve("discriminator_accuracy")
    if not accuracy:
        why = (
            "This run aligned nothing, so it has no discriminator."
            if method == "none"
            else f"The alignment {method} has no discriminator."
        )
        return section("discriminator", heading, paragraph(why))
    blind = Level("blind guess", run.of_alignment("chance"))
    aware = Level("labels alone", run.of_alignment("label_aware_chance"))
    by_task = [Line(t, run.curve(f"{t}_discriminator_accuracy"), i) for i, t in enumerate(run.tasks)]
    entropy = [Line(t, run.curve(f"{t}_discriminator_cross_entropy"), i) for i, t in enumerate(run.tasks)]
    charts = [
        line_chart("Discriminator accuracy by epoch", [Line("all tasks", accuracy, 0)], levels=[blind, aware]),
        line_chart("Discriminator accuracy on each task's gradients", by_task, levels=[blind, aware]),
        line_chart("Discriminator cross-entropy on each task's gradients, in nats", entropy),
    ]
    said = [
        paragraph(
            "The share of gradients whose task the discriminator names. An accuracy up to what the labels alone give "
            "away says nothing about the representation.",
            soft=True,
        )
    ]
    if aware.value is None:
        said.append(paragraph("What the labels alone give away was not recorded. ", *_how_to_monitor(run, shown)))
    return section("discriminator", heading, said, grouped([chart for chart in charts if chart is not None]))


def _how_to_monitor(run: RunFiles, shown: str) -> list[Child]:
    """Say how a run records what the monitor sees."""
    every = run.setting("training", "monitor_every")
    if every:
        return [f"The run looked at the gradients every {every} steps and found nothing to average."]
    source = shlex.quote(shown + "/config.yaml")
    command = f"gradalign train {source} --set training.monitor_every=100 --out {shlex.quote(shown + '-monitored')}"
    return ["A run records it where training.monitor_every is above 0: ", code(command)]


def _gradients(run: RunFiles, shown: str) -> Section:
    pairs = list(enumerate(run.pairs))
    cosine = [Line(f"{t} and {u}", run.curve(f"{t}_{u}_gradient_cosine"), i) for i, (t, u) in pairs]
    conflict = [Line(f"{t} and {u}", run.curve(f"{t}_{u}_conflicting_rows"), i) for i, (t, u) in pairs]
    norms = [Line(task, run.curve(f"{task}_gradient_norm"), i) for i, task in enumerate(run.tasks)]
    share = [Line("alignment", run.curve("alignment_share"), 0)]
    strength = [Line("strength", run.curve("alignment_strength"), 0)]
    charts = [
        line_chart("Cosine of two tasks' gradients, mean over rows", cosine, levels=[Level("orthogonal", 0.0)]),
        line_chart("Share of rows whose two gradients conflict", conflict),
        line_chart("Length of a row's gradient, root mean square", norms),
        line_chart("The alignment's share of the gradient at the shared tensor", share),
        line_chart("Strength of the alignment", strength),
    ]
    drawn = [chart for chart in charts if chart is not None]
    heading = "The tasks' gradients at the shared representation"
    said: list[Html] = []
    if drawn:
        said.append(
            paragraph(
                "Of the same training rows each time, means over an epoch's looks. Labels that differ turn a cosine "
                "round, whatever the representation.",
                soft=True,
            )
        )
    if not charts[0] and run.pairs:
        said.append(paragraph("The gradients were not watched while the run trained. ", *_how_to_monitor(run, shown)))
    if not run.pairs:
        said.append(paragraph("The run has one task, so there is no pair of gradients to compare."))
    value, source = alignment_share(run)
    if value is not None:
        ratio = as_number(run.of_alignment("second_to_first_order_ratio"), 3)
        said.append(
            paragraph(
                f"The alignment's share of the gradient at the end: {as_percent(value)} ({source}); at strength 1 its "
                f"gradient has {ratio} times the length of the tasks', on one batch of training rows."
            )
        )
    return section("gradients", heading, said, grouped(drawn))


def _picture(run: RunFiles, shown: str) -> Section:
    heading = "The gradients before and after training"
    command = code(f"gradalign probe {shlex.quote(shown)}")
    if run.probe is None:
        return section("probe", heading, paragraph("No probe was run, so there is no picture. It is made by ", command))
    accuracy, blind, aware = (run.of_probe(name) for name in ("accuracy", "chance", "label_aware_chance"))
    low, high = run.pair_of_probe("interval")
    rows = [
        ["balanced accuracy", f"{as_number(accuracy)} ({as_number(low)} to {as_number(high)})"],
        ["blind guess", as_number(blind)],
        ["labels alone", as_number(aware)],
    ]
    found: list[Html] = [
        table(
            "A new classifier, trained after the run on its frozen gradients and judged on rows that neither has seen; "
            "the interval is from a bootstrap over rows.",
            ["the fresh probe", "share named right"],
            rows,
        )
    ]
    clouds = [(moment, run.points[moment]) for moment in BEFORE_AND_AFTER if moment in run.points]
    if clouds:
        edge, (first, second) = edge_of([points for _, points in clouds]), run.pair_of_probe("variances")
        axes = (f"first component ({_whole(first)})", f"second component ({_whole(second)})")
        found.append(
            paragraph(
                f"Normalised gradients ({run.probe.get('normalize')}) of the same test rows, along the two directions "
                "in which they vary most; both figures have the same axes.",
                soft=True,
            )
        )
        found.append(grouped([cloud(f"Gradients {moment}", points, edge, axes) for moment, points in clouds]))
    if BEFORE_AND_AFTER[0] not in run.points:
        what = "picture of the gradients before training" if clouds else "picture"
        found.append(paragraph(f"The run's probe left no {what}. It is made by ", command))
    return section("probe", heading, found)


def _whole(share: float | None) -> str:
    return "share not known" if share is None else f"{share:.0%} of the variance"


def _cost(run: RunFiles) -> Section:
    seconds = [row["seconds"] for row in run.history]
    later = [s for s in seconds[1:] if s is not None]
    rows = [
        ["training, in seconds", as_number(run.of_training("seconds"), 1)],
        ["rows a second", as_count(run.of_training("rows_per_second"))],
        ["epochs", as_count(run.of_training("epochs"))],
        ["optimizer steps", as_count(run.of_training("steps"))],
        ["first epoch, in seconds", as_number(seconds[0], 2)],
        *([["a later epoch, in seconds", as_number(mean(later), 2)]] if later else []),
    ]
    note = "Without validation and measuring. The first epoch includes tracing and compiling."
    versions = [[name, str(version)] for name, version in run.metrics["versions"].items()]
    return section(
        "cost",
        "Cost and versions",
        grouped([table(note, ["training", "figure"], rows), table("Versions.", ["package", "version"], versions)]),
    )


def _configuration(run: RunFiles) -> Section:
    parts = [configuration_table(part, run.config.get(part)) for part in ("model", "alignment", "training")]
    whole = folded("The whole config.yaml", preformatted("config.yaml", run.config_text))
    return section("configuration", "Configuration", grouped([part for part in parts if part is not None]), whole)


def configuration_table(name: str, settings: Any) -> Html | None:
    """Return a part of a config as a table, or None where it is empty."""
    if not isinstance(settings, dict) or not settings:
        return None
    rows: list[Sequence[Child]] = [[key, _setting(value)] for key, value in settings.items()]
    return table(f"{name}, as the run had it.", ["key", "value"], rows, texts=(1,))


def _setting(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(_setting, value)) if isinstance(value, list) else str(value)
