"""Run folders: what a finished one holds, and how one comes to be without ever looking finished too early.

Training writes into `<out>.partial` beside `<out>` and renames it at the very end. What is called `<out>` is therefore
complete, and what was interrupted is still there to be resumed. An old run that is overwritten stays until then.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradalign.errors import UserError
from gradalign.training.config import Config
from gradalign.training.config_file import load_config

if TYPE_CHECKING:
    from gradalign.data import Preprocessing
    from gradalign.multi_task_model import MultiTaskModel

CONFIG, HISTORY, MODEL, METRICS = "config.yaml", "history.csv", "model.keras", "metrics.json"
PREPROCESSING, SERVING = "preprocessing.json", "serving"
ROWS = "rows"  # encoded rows of files that are read in parts, while the run goes on
_ALL = (CONFIG, HISTORY, MODEL, METRICS, PREPROCESSING, SERVING)


@dataclass(frozen=True)
class Run:
    """A finished run folder; `Run.open` checks that it is one.

    Args:
        path: the folder, which holds config.yaml, history.csv, model.keras, preprocessing.json, metrics.json and
            serving/.
    """

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Return the run at `path`.

        Raises:
            UserError: there is no such folder, it is not a run, or the run was interrupted.

        >>> Run.open("no/such/folder")
        Traceback (most recent call last):
        ...
        gradalign.errors.UserError: There is no run folder "no/such/folder"; `gradalign train` makes one.
        """
        path = Path(path).expanduser()
        partial = partial_of(path)
        if (partial.is_dir() and not path.exists()) or (path.name.endswith(".partial") and (path / CONFIG).is_file()):
            raise UserError(
                f'The run in "{path}" was interrupted; finish it first: gradalign train --resume {_target(path)}'
            )
        if not path.exists():
            raise UserError(f'There is no run folder "{path}"; `gradalign train` makes one.')
        missing = [name for name in _ALL if not (path / name).exists()] if path.is_dir() else list(_ALL)
        if missing:
            raise UserError(f'"{path}" is not a run folder: it has no {missing[0]}; `gradalign train` makes one.')
        return cls(path)

    @cached_property
    def config(self) -> Config:
        """The resolved config that the run was trained with."""
        return load_config(self.path / CONFIG)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What metrics.json holds."""
        path = self.path / METRICS
        try:
            metrics: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except ValueError:
            raise UserError(f'"{path}" is damaged: it is not JSON; train the run again.') from None
        return metrics

    def model(self) -> MultiTaskModel:
        """The trained model, compiled, ready to train on."""
        return load_model(self.path / MODEL)

    def preprocessing(self) -> Preprocessing:
        """The preprocessing that was fitted on the training file."""
        from gradalign.data import Preprocessing

        return Preprocessing.load(self.path / PREPROCESSING)


def load_model(path: Path) -> MultiTaskModel:
    """Load a saved MultiTaskModel with its optimizers and its place in the schedule.

    Raises:
        UserError: the file is damaged.
    """
    import keras

    import gradalign.multi_task_model
    import gradalign.optimizers  # noqa: F401  (both register classes that the file names)

    damage = _damage_of_zip(path)
    if damage is not None:
        raise UserError(f'The model "{path}" is damaged ({damage}); restore it from a copy, or train the run again.')
    model: MultiTaskModel = keras.models.load_model(path)
    return model


def _damage_of_zip(path: Path) -> str | None:
    """What is wrong with a .keras file, a zip archive whose members carry checksums; `None` where nothing is."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        return " ".join(str(error).split()).rstrip(".").lower()
    return None if broken is None else f"{broken} fails its checksum"


def partial_of(out: Path) -> Path:
    """The folder that a run is written to until it is complete."""
    out = out if out.name.strip(".") else out.resolve()  # "." and ".." have names too
    return out if out.name.endswith(".partial") else out.parent / (out.name + ".partial")


def _target(path: Path) -> Path:
    return path.parent / path.name.removesuffix(".partial")


def is_run(path: Path) -> bool:
    """Whether `path` is a folder that a finished run left."""
    return (path / CONFIG).is_file() and (path / METRICS).is_file()


def refuse_if_taken(out: Path, overwrite: bool) -> None:
    """Raise a UserError where a new run must not be written to `out`.

    With `overwrite` a finished or an interrupted run may be replaced, but nothing that is not a run.
    """
    partial = partial_of(out)
    if out.name.endswith(".partial"):
        raise UserError(f'"{out}" ends with .partial, which marks interrupted runs; choose another --out.')
    if out.exists() and not is_run(out) and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f'"{out}" exists and is not a run folder, so it is left alone; choose another --out.')
    if overwrite:
        return
    if is_run(out):
        raise UserError(f'"{out}" holds a run already; choose another --out, or replace it with --overwrite.')
    if partial.exists():
        raise UserError(
            f'"{partial}" holds a run that was interrupted, or that is still going on; go on with '
            f"`gradalign train --resume {out}`, choose another --out, or replace it with --overwrite."
        )


def create_partial(out: Path, overwrite: bool) -> Path:
    """Make and return the folder to write a new run to; an interrupted run there is removed with `overwrite`."""
    partial = partial_of(out)
    try:
        if overwrite and partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f'The run folder "{partial}" cannot be made: {error.strerror}.') from None
    return partial


def find_interrupted(path: Path) -> tuple[Path, Path]:
    """Return (partial folder, final folder) of the interrupted run that `path` names with or without ".partial".

    Raises:
        UserError: there is none, or it is finished.
    """
    out = _target(path)
    partial = partial_of(out)
    if (partial / CONFIG).is_file():
        return partial, out
    if is_run(out):
        raise UserError(f'The run in "{out}" is finished, so there is nothing to resume.')
    raise UserError(f'There is no interrupted run "{partial}" to resume.')


def finish(partial: Path, out: Path) -> None:
    """Give a complete run its final name, in place of the run that had it before, if any."""
    old = out.with_name(out.name + ".old")
    if out.exists():
        if old.exists():
            shutil.rmtree(old)
        os.replace(out, old)
    os.replace(partial, out)
    if old.exists():
        shutil.rmtree(old)


def remove_rows(folder: Path) -> None:
    """Remove the encoded rows that training read from; the run needs them no more."""
    shutil.rmtree(folder / ROWS, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole or, after a crash, as it was before."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)
