"""Training from a config to a finished run folder, and going on where it was interrupted."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from gradalign._version import __version__
from gradalign.data import Preprocessing
from gradalign.multi_task_model import MultiTaskModel
from gradalign.training import run_folder
from gradalign.training.batches import batches, shuffled_batches, steps_per_epoch
from gradalign.training.build import Prepared, build_model, prepare
from gradalign.training.check import report
from gradalign.training.checkpoint import Checkpoint, Row, last_checkpoint, remove_checkpoints, save
from gradalign.training.config import Config
from gradalign.training.config_file import dump_config, load_config
from gradalign.training.export import write_serving
from gradalign.training.measure import measure
from gradalign.training.progress import TrainingProgress
from gradalign.training.rows import read_tables
from gradalign.training.run_folder import Run
from gradalign.training.scoring import scores


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
    prepared = prepare(config, read_tables(config.data))
    model = _fresh_model(prepared)
    partial = run_folder.create_partial(out, overwrite)
    run_folder.write_text(partial / run_folder.CONFIG, dump_config(prepared.config))
    prepared.preprocessing.save(partial / run_folder.PREPROCESSING)
    console.print(prepared.schema.describe(), highlight=False, markup=False, soft_wrap=True)
    return _finish(prepared, model, [], partial, out, console)


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
    prepared = prepare(config, read_tables(config.data), preprocessing)
    prepared.preprocessing.save(fitted)
    checkpoint, history = last_checkpoint(partial)
    console.print(f"Going on after epoch {len(history)} of {config.training.epochs}.", highlight=False)
    model = _fresh_model(prepared) if checkpoint is None else run_folder.load_model(checkpoint)
    return _finish(prepared, model, history, partial, out, console)


def _rows(prepared: Prepared) -> int:
    return len(next(iter(prepared.train[1].values())))


def _fresh_model(prepared: Prepared) -> MultiTaskModel:
    training = prepared.config.training
    keras.utils.set_random_seed(training.seed)
    steps = steps_per_epoch(_rows(prepared), training.batch_size) * training.epochs
    return build_model(prepared.config, prepared.preprocessing, steps)


def _finish(
    prepared: Prepared, model: MultiTaskModel, history: list[Row], partial: Path, out: Path, console: Console
) -> Run:
    """Train the epochs that are missing, measure, export, and give the folder its final name."""
    training = prepared.config.training
    history = _fit(prepared, model, history, partial, console)
    x, y = prepared.test
    metrics = {
        "test": measure(y, scores(model.base, x)),
        "alignment": _alignment_metrics(prepared, model, history[-1]),
        "training": _training_metrics(_rows(prepared), training.batch_size, history),
        "versions": _versions(),
    }
    save(model, partial / run_folder.MODEL)
    if not (partial / run_folder.SERVING).exists():
        write_serving(prepared.preprocessing, model.base, partial / run_folder.SERVING)
    run_folder.write_text(partial / run_folder.METRICS, json.dumps(metrics, indent=2) + "\n")
    run_folder.finish(partial, out)
    remove_checkpoints(out)  # last, so that whatever is interrupted before can be resumed
    return Run.open(out)


def _fit(prepared: Prepared, model: MultiTaskModel, history: list[Row], partial: Path, console: Console) -> list[Row]:
    training, done = prepared.config.training, len(history)
    if done == training.epochs:
        return history
    x, y = prepared.train
    rows = _rows(prepared)
    data = shuffled_batches(x, y, training.batch_size, training.seed, done, training.epochs)
    validation = None if prepared.validation is None else batches(*prepared.validation, 8192)
    checkpoint = Checkpoint(partial, history)
    with TrainingProgress(console, rows, training.epochs, training.batch_size) as progress:
        model.fit(
            data,
            initial_epoch=done,
            epochs=training.epochs,
            steps_per_epoch=steps_per_epoch(rows, training.batch_size),
            validation_data=validation,
            callbacks=[checkpoint, progress],
            shuffle=False,  # the batches are shuffled already
            verbose=0,
        )
    return checkpoint.history


def _alignment_metrics(prepared: Prepared, model: MultiTaskModel, last: Row) -> dict[str, Any]:
    """How the alignment ended: the discriminator's accuracy of the last epoch beside chance, and its reach."""
    config = prepared.config
    found: dict[str, Any] = {
        "method": config.alignment.method,
        "strength": 0.0,
        "discriminator_accuracy": None,
        "chance": None,
        "second_to_first_order_ratio": None,
    }
    if model.alignment is None:
        return found
    second_order = report(model, prepared.train, config.training.batch_size, config.training.seed)
    return {
        **found,
        "strength": float(model.alignment.strength),
        "discriminator_accuracy": last["discriminator_accuracy"],
        "chance": model.alignment.chance_accuracy,
        "second_to_first_order_ratio": second_order.second_to_first,
    }


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
