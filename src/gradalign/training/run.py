"""Training from a config to a finished run folder, and going on where it was interrupted."""

from __future__ import annotations

import json
import math
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gradalign._version import __version__
from gradalign.data import Preprocessing
from gradalign.diagnostics import GradientMonitor
from gradalign.multi_task_model import MultiTaskModel
from gradalign.training import run_folder
from gradalign.training.batches import batches, shuffled_batches, steps_per_epoch
from gradalign.training.build import initial_model
from gradalign.training.check import report
from gradalign.training.checkpoint import Checkpoint, Row, last_checkpoint, remove_checkpoints, save
from gradalign.training.config import Config
from gradalign.training.config_file import dump_config, load_config
from gradalign.training.encoding import Encoder, Learnt, Prepared, encode_all, learn
from gradalign.training.export import write_serving
from gradalign.training.measure import measure
from gradalign.training.progress import TrainingProgress
from gradalign.training.rows import Tables, read_tables
from gradalign.training.run_folder import Run
from gradalign.training.scoring import scores_of_rows

MONITOR_ROWS = 1024


def default_out(config: Config) -> Path:
    """Where a run goes when nothing else is said: runs/<name>."""
    return Path("runs") / config.name


def train(
    config: Config, out: str | Path | None = None, *, overwrite: bool = False, console: Console | None = None
) -> Run:
    """Train the model that a config describes, and return the finished run.

    Until it is finished, the run is in `<out>.partial`, from where `resume` can go on after an interruption. Sets the
    random seeds of Python, NumPy and TensorFlow to `training.seed`.

    Args:
        config: from `load_config` or `validate`.
        out: the run folder; by default runs/<name>.
        overwrite: replace a run that is there.
        console: where to print what was inferred and the progress; by default nothing is printed.

    Raises:
        UserError: `out` is taken, or the data does not fit the config; nothing has been written then.
    """
    out = default_out(config) if out is None else Path(out).expanduser()
    console = console or Console(quiet=True)
    run_folder.refuse_if_taken(out, overwrite)
    tables = read_tables(config.data)
    learnt = learn(config, tables)
    if tables.is_streamed:  # encoding takes long and is worth resuming, so the run is begun before
        _check_first_rows(learnt, tables)
        model = _fresh_model(learnt, tables.train.rows)
        partial = _begin(learnt, out, overwrite, console)
        prepared = _encode_streamed(learnt, tables, partial, console)
    else:
        prepared = encode_all(learnt, tables)
        del tables  # the encoded rows are all that training needs
        model = _fresh_model(learnt, len(prepared.train))
        partial = _begin(learnt, out, overwrite, console)
    return _finish(prepared, model, [], partial, out, console)


def _check_first_rows(learnt: Learnt, tables: Tables) -> None:
    encoder = Encoder(learnt.config, learnt.preprocessing, tables, folder=None)
    for name in ("train", "validation", "test"):
        part = getattr(tables, name)
        if part is not None:
            encoder.check_columns(part, name)


def _begin(learnt: Learnt, out: Path, overwrite: bool, console: Console) -> Path:
    """Make the partial folder, with what `resume` needs."""
    partial = run_folder.create_partial(out, overwrite)
    learnt.preprocessing.save(partial / run_folder.PREPROCESSING)
    run_folder.write_text(partial / run_folder.CONFIG, dump_config(learnt.config))
    console.print(learnt.schema.describe(), highlight=False, markup=False, soft_wrap=True)
    return partial


def _encode_streamed(learnt: Learnt, tables: Tables, partial: Path, console: Console) -> Prepared:
    said = f"Reading the files in parts, as they need more memory than {learnt.config.data.memory_gb:.3g} GB."
    console.print(said, highlight=False, soft_wrap=True)
    return encode_all(learnt, tables, partial / run_folder.ROWS)


def resume(path: str | Path, *, console: Console | None = None) -> Run:
    """Go on with an interrupted run from its last complete epoch, to the weights it would have had.

    Args:
        path: the run folder that the interrupted run was to have, or the one that it has (`<out>.partial`).
        console: where to print.

    Raises:
        UserError: there is no interrupted run.
    """
    partial, out = run_folder.find_interrupted(Path(path).expanduser())
    console = console or Console(quiet=True)
    config = load_config(partial / run_folder.CONFIG)
    fitted = partial / run_folder.PREPROCESSING
    preprocessing = Preprocessing.load(fitted) if fitted.exists() else None  # none: interrupted at the very start
    tables = read_tables(config.data)
    learnt = learn(config, tables, preprocessing)
    learnt.preprocessing.save(fitted)
    if tables.is_streamed:
        prepared = _encode_streamed(learnt, tables, partial, console)
    else:
        prepared = encode_all(learnt, tables)
        del tables
    checkpoint, history = last_checkpoint(partial)
    console.print(f"Going on after epoch {len(history)} of {config.training.epochs}.", highlight=False)
    model = _fresh_model(learnt, len(prepared.train)) if checkpoint is None else run_folder.load_model(checkpoint)
    return _finish(prepared, model, history, partial, out, console)


def _fresh_model(learnt: Learnt, rows: int) -> MultiTaskModel:
    training = learnt.config.training
    steps = steps_per_epoch(rows, training.batch_size) * training.epochs
    return initial_model(learnt.config, learnt.preprocessing, steps)


def _finish(
    prepared: Prepared, model: MultiTaskModel, history: list[Row], partial: Path, out: Path, console: Console
) -> Run:
    """Train the epochs that are missing, measure, export, and give the folder its final name."""
    from gradalign.report import write_run_report  # only a finished run needs it

    training = prepared.config.training
    history = _fit(prepared, model, history, partial, console)
    _, y = prepared.test
    metrics = {
        "test": measure(y, scores_of_rows(model.base, prepared.test)),
        "alignment": _alignment_metrics(prepared, model, history[-1]),
        "training": _training_metrics(len(prepared.train), training.batch_size, history),
        "versions": _versions(),
    }
    save(model, partial / run_folder.MODEL)
    if not (partial / run_folder.SERVING).exists():
        write_serving(prepared.preprocessing, model.base, partial / run_folder.SERVING)
    run_folder.write_text(partial / run_folder.METRICS, json.dumps(metrics, indent=2) + "\n")
    write_run_report(partial, shown=out)
    run_folder.remove_rows(partial)
    run_folder.finish(partial, out)
    remove_checkpoints(out)  # last, so that whatever is interrupted before can be resumed
    return Run.open(out)


def _fit(prepared: Prepared, model: MultiTaskModel, history: list[Row], partial: Path, console: Console) -> list[Row]:
    training, done = prepared.config.training, len(history)
    if done == training.epochs:
        return history
    rows = len(prepared.train)
    buffer = prepared.config.data.shuffle_buffer
    data = shuffled_batches(prepared.train, training.batch_size, training.seed, done, training.epochs, buffer)
    validation = None if prepared.validation is None else batches(prepared.validation, 8192)
    checkpoint = Checkpoint(partial, history)
    with TrainingProgress(console, rows, training.epochs, training.batch_size) as progress:
        model.fit(
            data,
            initial_epoch=done,
            epochs=training.epochs,
            steps_per_epoch=steps_per_epoch(rows, training.batch_size),
            validation_data=validation,
            callbacks=[*_monitors(prepared), checkpoint, progress],  # the checkpoint writes what monitors logged
            shuffle=False,  # the batches are shuffled already
            verbose=0,
        )
    return checkpoint.history


def _monitors(prepared: Prepared) -> list[GradientMonitor]:
    """What looks at the tasks' gradients, on training rows that depend on nothing but the seed."""
    every, seed, count = prepared.config.training.monitor_every, prepared.config.training.seed, len(prepared.train)
    if every == 0:
        return []
    chosen = np.sort(np.random.default_rng(seed).choice(count, min(MONITOR_ROWS, count), replace=False))
    return [GradientMonitor(prepared.train.take(chosen), every=every, rows=MONITOR_ROWS)]


def _alignment_metrics(prepared: Prepared, model: MultiTaskModel, last: Row) -> dict[str, Any]:
    """How the alignment ended: the discriminator's accuracy of the last epoch beside chance, reach and share."""
    config = prepared.config
    found: dict[str, Any] = {
        "method": config.alignment.method,
        "strength": 0.0,
        "discriminator_accuracy": None,
        "chance": None,
        "label_aware_chance": None,
        "second_to_first_order_ratio": None,
        "share_of_gradient": None,
    }
    if model.alignment is None:
        return found
    second_order = report(model, prepared.train, config.training.batch_size, config.training.seed)
    return {
        **found,
        "strength": float(model.alignment.strength),
        "discriminator_accuracy": last.get("discriminator_accuracy"),
        "chance": 1.0 / len(model.alignment.aligned_tasks) if model.alignment.has_weights else None,
        "label_aware_chance": _figure(last, "discriminator_label_aware_chance"),
        "second_to_first_order_ratio": second_order.second_to_first,
        "share_of_gradient": _figure(last, "alignment_share"),
    }


def _figure(last: Row, name: str) -> float | None:
    """An epoch's mean over the monitor's looks; None without a monitor, and where there was nothing to average."""
    value = last.get(name)
    return None if value is None or math.isnan(value) else value


def _training_metrics(rows: int, batch_size: int, history: list[Row]) -> dict[str, Any]:
    seconds = sum(row["seconds"] for row in history)
    return {
        "epochs": len(history),
        "steps": len(history) * steps_per_epoch(rows, batch_size),
        "seconds": round(seconds, 3),
        "rows_per_second": round(len(history) * rows / seconds, 1),
    }


def _versions() -> dict[str, str]:
    names = ("keras", "numpy", "pyarrow", "scikit-learn")
    import tensorflow as tf

    found = {"gradalign": __version__, "python": platform.python_version(), "tensorflow": tf.__version__}
    return {**found, **{name: metadata.version(name) for name in names}}
