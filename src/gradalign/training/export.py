"""The model as it is served: raw columns in, one output per task, in TensorFlow's SavedModel format."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import keras

from gradalign.data import Preprocessing
from gradalign.errors import UserError
from gradalign.training.run_folder import SERVING, Run


def serving_model(preprocessing: Preprocessing, base: keras.Model) -> keras.Model:
    """Join preprocessing and model: {column: (B,)} of the training columns' types -> {task: (B, 1)}.

    It holds no discriminator, no reversal and no optimizer; TensorFlow alone can run what it exports.
    """
    raw = {
        name: keras.Input(shape=tensor.shape[1:], dtype=tensor.dtype, name=name)
        for name, tensor in preprocessing.model.input.items()
    }
    return keras.Model(raw, base(preprocessing.model(raw)), name="serving")


def write_serving(preprocessing: Preprocessing, base: keras.Model, folder: Path) -> None:
    """Export to `folder`, which appears only when it is complete.

    Raises:
        UserError: `folder` exists, or cannot be written.
    """
    if folder.exists():
        raise UserError(f'"{folder}" exists; choose another folder for the served model.')
    temporary = folder.with_name(folder.name + ".tmp")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        if temporary.exists():  # of an export that was interrupted
            shutil.rmtree(temporary)
        serving_model(preprocessing, base).export(temporary, format="tf_saved_model", verbose=False)
        os.replace(temporary, folder)
    except OSError as error:
        raise UserError(f'The served model cannot be written to "{folder}": {error.strerror or error}.') from None


def export(run: Run, out: Path | None = None, *, overwrite: bool = False) -> Path:
    """Write a run's served model, and return where.

    Args:
        run: the run.
        out: the folder to write to; by default the run's own `serving`, which is written anew.
        overwrite: replace `out` where it holds a SavedModel.

    Raises:
        UserError: `out` exists and `overwrite` is not given, or it is not a SavedModel.
    """
    folder = run.path / SERVING if out is None else out
    own = out is None or folder.resolve() == (run.path / SERVING).resolve()
    if folder.exists() and not own:
        if not overwrite:
            raise UserError(f'"{folder}" exists; choose another --out, or replace it with --overwrite.')
        if not (folder / "saved_model.pb").is_file():
            raise UserError(f'"{folder}" is not a served model, so it is left alone; choose another --out.')
    preprocessing, base = run.preprocessing(), run.model().base
    fresh = folder.with_name(folder.name + ".new")
    if fresh.exists():
        shutil.rmtree(fresh)
    write_serving(preprocessing, base, fresh)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(fresh, folder)
    return folder
