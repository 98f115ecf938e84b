"""The command line: `gradalign train | evaluate | predict | export | check | probe | report | compare | bench`.

What a command does is in `gradalign.training`, `gradalign.comparison` and `gradalign.benchmarks`, which are imported
inside the commands: `gradalign --help` loads no TensorFlow. A wrong input ends in one sentence on stderr and exit code
2, an interruption in exit code 130.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gradalign._version import __version__
from gradalign.errors import GradAlignWarning, UserError

_SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the config: training.epochs=2."
)
_OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace what is there already.")
_RUN = click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))


class _Problem(click.ClickException):
    """A UserError as click shows it."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"Error: {self.format_message()}", file=file or sys.stderr)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Keep TensorFlow quiet, say warnings in one line, and turn a UserError into one sentence."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            plain = warnings.showwarning
            warnings.showwarning = functools.partial(_show_warning, plain)
            try:
                function(*args, **kwargs)
            except UserError as error:
                raise _Problem(str(error)) from None

    return wrapped


def _show_warning(plain: Callable[..., None], message: Warning, category: type[Warning], *where: Any) -> None:
    if issubclass(category, GradAlignWarning):
        click.echo(f"Warning: {message}", err=True)
    else:
        plain(message, category, *where)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradalign")
def main() -> None:
    """Train multi-task models whose tasks pull the shared representation the same way."""


@main.command()
@click.argument("config", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="The run folder to make; runs/<name> by default.")
@_SET
@_OVERWRITE
@click.option("--resume", "resumed", metavar="DIR", type=click.Path(path_type=Path), help="Go on with a run.")
@_command
def train(
    config: str | None, out: Path | None, overrides: tuple[str, ...], overwrite: bool, resumed: Path | None
) -> None:
    """Train the model of CONFIG, a YAML file or the name of a bundled one: census-income, synthetic.

    The run folder holds the resolved config, the history, the metrics, the model and its served form. An interrupted
    run is kept in <out>.partial; `gradalign train --resume <out>` goes on with it.
    """
    if resumed is not None and (config or out or overrides or overwrite):
        raise UserError("--resume goes on with a run as it was begun; give it without CONFIG and other options.")
    if resumed is None and config is None:
        raise UserError("Name a config: a YAML file, or the bundled census-income or synthetic.")

    from gradalign.training.config_file import load_config
    from gradalign.training.run_folder import partial_of, refuse_if_taken

    if resumed is None:
        settings = load_config(str(config), overrides)
        out = Path("runs") / settings.name if out is None else out
        refuse_if_taken(out, overwrite)  # before TensorFlow takes its seconds to load
    target = resumed if resumed is not None else out
    assert target is not None
    _quiet()
    from gradalign.training import run
    from gradalign.training.measure import suspicions
    from gradalign.training.progress import results_table

    try:
        if resumed is not None:
            finished = run.resume(resumed, console=_console())
        else:
            finished = run.train(settings, out, overwrite=overwrite, console=_console())
    except KeyboardInterrupt:
        kept = partial_of(target).exists()
        hint = f"; go on with: gradalign train --resume {target}" if kept else ", before anything was written."
        click.echo(f"Interrupted{hint}", err=True)
        sys.exit(130)
    metrics = finished.metrics
    Console().print(results_table(metrics["test"], metrics["alignment"], "the test part"))
    click.echo(f"Run folder: {finished.path}")
    for sentence in suspicions(metrics["test"]):
        click.echo(f"Warning: {sentence}", err=True)


@main.command()
@_RUN
@click.option("--data", type=click.Path(path_type=Path), help="A Parquet or CSV file instead of the run's test part.")
@_command
def evaluate(run_path: Path, data: Path | None) -> None:
    """Measure the model of RUN on its test part, or on another file with the same columns."""
    run = _open(run_path)
    from gradalign.training.evaluate import evaluate as measure_run
    from gradalign.training.progress import results_table

    metrics = measure_run(run, data)
    Console().print(results_table(metrics, None, str(data or "the test part")))


@main.command()
@_RUN
@click.option("--data", type=click.Path(path_type=Path), required=True, help="The Parquet or CSV file to score.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The .parquet or .csv file to write.")
@_OVERWRITE
@_command
def predict(run_path: Path, data: Path, out: Path, overwrite: bool) -> None:
    """Score every row of a file: all of its columns, and one score per task, go to another file.

    A task's score is in a column of the task's name, or <task>_score where the data has a column of that name already.
    """
    run = _open(run_path)
    from gradalign.training.predict import predict as score_file
    from gradalign.training.progress import Counter

    with Counter(_console(), "Scoring") as counter:
        score_file(run, data, out, overwrite=overwrite, progress=counter)
    click.echo(f"{counter.rows:,} rows scored: {out}")


@main.command()
@_RUN
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write; RUN/serving by default.")
@_OVERWRITE
@_command
def export(run_path: Path, out: Path | None, overwrite: bool) -> None:
    """Write RUN's model for serving: a SavedModel that takes raw columns and needs TensorFlow alone.

    Without --out, the served model that RUN holds is written anew from its model.keras.
    """
    run = _open(run_path)
    from gradalign.training.export import export as write

    click.echo(f"Served model: {write(run, out, overwrite=overwrite)}")


@main.command()
@click.argument("target", metavar="CONFIG|RUN")
@_SET
@_command
def check(target: str, overrides: tuple[str, ...]) -> None:
    """Check that the alignment's second-order gradient reaches the shared representation.

    Exit code 1 says that it does not; the report says why and what to change.
    """
    from gradalign.training.config_file import load_config

    if Path(target).is_dir():
        _open(Path(target))
    else:
        load_config(target, overrides)
        _quiet()
    from gradalign.training.check import check as second_order

    report = second_order(target, overrides)
    click.echo(str(report))
    sys.exit(0 if report.ok else 1)


@main.command()
@_RUN
@click.option("--data", type=click.Path(path_type=Path), help="A Parquet or CSV file instead of the run's test part.")
@click.option(
    "--normalize",
    type=click.Choice(["batch", "l2", "none"]),
    help="Of the gradients; by default as the run's alignment.",
)
@click.option("--rows", type=click.IntRange(min=30), default=10_000, show_default=True, help="Rows to use at most.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the rows and the classifier."
)
@_command
def probe(run_path: Path, data: Path | None, normalize: str | None, rows: int, seed: int) -> None:
    """Train a new classifier to tell which task a gradient of RUN's model comes from, on rows that RUN has not seen.

    Its accuracy stands beside two chance levels: of a blind guess, and of one that sees the labels alone. RUN gets
    probe.json, a picture of the gradients before and after training, probe.svg, its points, and a new report.html.
    """
    run = _open(run_path)
    from gradalign.training.probe import PICTURE, PROBE
    from gradalign.training.probe import probe as probe_run

    click.echo(str(probe_run(run, data, normalize=normalize, rows=rows, seed=seed)))
    click.echo(f"Written: {run.path / PROBE}, {PICTURE} and report.html")


@main.command()
@click.argument("path", metavar="RUN|COMPARISON", type=click.Path(path_type=Path))
@_command
def report(path: Path) -> None:
    """Write report.html into the folder of a run or of a comparison: curves, figures and a verdict in one file.

    It is made from the folder's files alone, loads nothing from elsewhere, and can be read on a phone.
    """
    from gradalign.report import write_report

    click.echo(f"Report: {write_report(path)}")


@main.command()
@click.argument("config")
@click.option(
    "--methods",
    default="none,single,adversarial",
    show_default=True,
    metavar="A,B",
    help="With commas between: none (plain sum), single (a model for each task), weights (loss weights by a grid), "
    "alignments and adversarial objectives by name, or YAML files whose keys override CONFIG.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each method.")
@click.option(
    "--trials", type=click.IntRange(min=0), default=0, help="Tune each method in so many trials; 0 by default."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time: one a core, or one on a GPU.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make; runs/<name>-comparison by default.")
@_SET
@_command
def compare(
    config: str, methods: str, seeds: int, trials: int, jobs: int | None, out: Path | None, overrides: tuple[str, ...]
) -> None:
    """Train the methods on paired seeds, and say how far each is from the plain sum, with intervals and cost.

    OUT keeps each finished run, so a comparison that was killed goes on with the same command. It gets comparison.csv,
    comparison.md and report.html.
    """
    from gradalign.comparison.methods import methods_named
    from gradalign.comparison.plan import Plan
    from gradalign.training.config_file import load_config

    settings = load_config(config, overrides)
    plan = Plan(settings, tuple(methods_named(methods, settings)), seeds, trials)
    from gradalign.comparison.compare import compare as run
    from gradalign.comparison.processes import jobs_at_once
    from gradalign.comparison.tables import printed

    folder = out or Path("runs") / f"{settings.name}-comparison"
    try:
        done = run(plan, folder, jobs or jobs_at_once(), _console())
    except KeyboardInterrupt:
        click.echo("Interrupted; what is finished stays, and the same command goes on with the rest.", err=True)
        sys.exit(130)
    console = Console()
    console.width = max(console.width, 122)  # a row of the table does not break
    console.print(printed(done.rows, str(folder)))
    for method, sentences in done.warnings.items():
        for sentence in sentences:
            click.echo(f"Warning ({method}): {sentence}", err=True)


@main.command()
@click.option("--cases", default="", metavar="A,B", help="Names of cases, with commas between; all by default.")
@click.option("--rounds", type=click.IntRange(min=1), help="Turns of every row: 12, or 2 with --quick.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Timed steps of a turn: 4, which one period of every=4 takes."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs/bench"), show_default=True, help="The folder to write."
)
@click.option("--quick", is_flag=True, help="Tiny models and data: shows that everything runs, its times say nothing.")
@click.option("--memory/--no-memory", default=True, help="Peak memory of every row, each in a process of its own.")
@_command
def bench(cases: str, rounds: int | None, steps: int | None, out: Path, quick: bool, memory: bool) -> None:
    """Measure training steps: plain, aligned, the recipe that circulates, PyTorch; and tables, input and start-up.

    All rows of a case are timed in turns in one process. OUT gets bench.json and bench.csv, after every case and on
    interruption.
    """
    from gradalign.benchmarks.cases import cases_named

    chosen = cases_named([name.strip() for name in cases.split(",") if name.strip()])
    _quiet()
    from gradalign.benchmarks.report import case_table, heading, target_table
    from gradalign.benchmarks.run import run

    console = Console()
    console.width = max(console.width, 92)  # a row of the table does not break
    try:
        results = run(
            chosen,
            rounds=rounds or (2 if quick else 12),
            steps=steps or 4,
            out=out,
            small=quick,
            memory=memory,
            console=_console(),
            show=lambda results: console.print(case_table(results.cases[-1])),
        )
    except KeyboardInterrupt:
        click.echo(f"Interrupted; what was measured until then is in {out}/bench.json and bench.csv.", err=True)
        sys.exit(130)
    console.print(target_table(results))
    console.print(heading(results), highlight=False)
    click.echo(f"Results: {out}/bench.json and bench.csv")


def _open(path: Path) -> Any:
    """Open a run, which needs no TensorFlow, and only then make ready for it."""
    from gradalign.training.run_folder import Run

    run = Run.open(path)
    _quiet()
    return run


def _quiet() -> None:
    from gradalign.training.quiet import quiet_tensorflow

    quiet_tensorflow()


def _console() -> Console:
    return Console(stderr=True)


if __name__ == "__main__":
    main()
