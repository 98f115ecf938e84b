"""The second-order report of a config's model, or of a trained one, on one batch of its training rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradalign.data import EncodedRows
from gradalign.diagnostics import SecondOrderReport, check_second_order
from gradalign.errors import UserError
from gradalign.multi_task_model import MultiTaskModel
from gradalign.training.batches import steps_per_epoch
from gradalign.training.build import initial_model, prepare
from gradalign.training.config_file import load_config
from gradalign.training.rows import read_tables
from gradalign.training.run_folder import Run


def check(target: str, overrides: Sequence[str] = ()) -> SecondOrderReport:
    """Return what `gradalign.check_second_order` says.

    Args:
        target: a config (a bundled name or a path), whose model is built but not trained, or a run folder.
        overrides: such as "alignment.normalize=l2"; with a config only.

    Raises:
        UserError: there is no such config or run, or it aligns nothing.
    """
    run = Run.open(target) if Path(target).is_dir() else None
    if run is not None and overrides:
        raise UserError(f'--set changes a config, but "{target}" is a run; check "{run.path / "config.yaml"}" instead.')
    config = run.config if run is not None else load_config(target, overrides)
    if config.alignment.method == "none":
        raise UserError(f"alignment.method is none in {target}, so there is no second-order gradient to check.")
    prepared = prepare(config, read_tables(config.data), run.preprocessing() if run is not None else None)
    if run is not None:
        model = run.model()
    else:
        steps = steps_per_epoch(len(prepared.train), config.training.batch_size) * config.training.epochs
        model = initial_model(config, prepared.preprocessing, steps)
    return report(model, prepared.train, config.training.batch_size, config.training.seed)


def report(model: MultiTaskModel, train: EncodedRows, batch_size: int, seed: int) -> SecondOrderReport:
    """Check the second-order gradient on `batch_size` training rows, drawn at random with `seed`."""
    chosen = np.sort(np.random.RandomState(seed).permutation(len(train))[:batch_size])
    return check_second_order(model, train.take(chosen))
