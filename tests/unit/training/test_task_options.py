"""A task's loss, condition and chain, from the config to labels, model and loss."""

from __future__ import annotations

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradalign.errors import UserError
from gradalign.losses import WeightedBinaryCrossentropy
from gradalign.training.build import build_model, loss_of, prepare
from gradalign.training.config import LossConfig, validate
from gradalign.training.config_file import dump_config
from gradalign.training.rows import read_tables

LABELS = {"clicked": [1, 1, 1, 0, 0, 1, 0, None], "bought": [1, 0, 1, 0, 0, 0, 0, 1]}
TABLE = pa.table(
    {"age": np.linspace(-1.0, 1.0, 8), **LABELS, "page": ["shop", "home", "home", "home", "shop", "shop", None, "home"]}
)
TASKS = {
    "click": {"label": "clicked", "positive": 1, "loss": {"kind": "focal", "gamma": 1.0, "pos_weight": 2.0}},
    "conversion": {"label": "bought", "positive": 1, "where": "clicked == 1", "loss": {"label_smoothing": 0.1}},
    "buy": {"label": "bought", "positive": 1, "chain": "click"},
    "page": {"label": "bought", "positive": 1, "where": "page != shop", "loss": {"pos_weight": 5.0}},
}


def config(**changes):
    raw = {
        "name": "shop",
        "data": {"train": "/a.parquet", "test": "/b.parquet"},
        "tasks": TASKS,
        "model": {"shared_dim": 2, "private_dim": 0, "towers": [3]},
    }
    return validate({**raw, **changes})


@pytest.fixture
def files(tmp_path):
    """The `data:` of a config."""
    tables = {"train": TABLE, "validation": TABLE.slice(2, 5), "test": TABLE.slice(2, 5)}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    return {name: str(tmp_path / f"{name}.parquet") for name in tables}


def test_labels_model_and_losses(files):
    settings = config(data=files)
    prepared = prepare(settings, read_tables(settings.data))
    nan = float("nan")
    wanted = {
        "click": [1, 1, 1, 0, 0, 1, 0, nan],
        "conversion": [1, 0, 1, nan, nan, 0, nan, nan],
        "buy": [1, 0, 1, 0, 0, 0, 0, 1],
        "page": [nan, 0, 1, 0, nan, nan, nan, 1],  # of an unknown page, nobody knows that it is no shop
    }
    for part, rows in ((prepared.train, slice(0, 8)), (prepared.validation, slice(2, 7)), (prepared.test, slice(2, 7))):
        assert part is not None
        _, y = part
        for task, label in wanted.items():
            np.testing.assert_array_equal(y[task], label[rows], err_msg=task)
    # Neither labels nor the columns of conditions are inputs, and the resolved config gives the same again.
    assert prepared.schema.columns == ("age",)
    assert validate(prepared.config.model_dump()) == prepared.config
    for words in ("where: clicked == 1", "chain: click", "kind: focal", "gamma: 1.0", "pos_weight: 5.0"):
        assert words in dump_config(prepared.config)

    model = build_model(prepared.config, prepared.preprocessing, total_steps=4)
    x, y = prepared.train
    predictions = {task: p.numpy()[:, 0].astype("float64") for task, p in model.base(x).items()}
    assert (predictions["buy"] < predictions["click"]).all()
    model.run_eagerly = True  # a trace for one batch takes seconds
    logs = model.evaluate(x, y, verbose=0, return_dict=True)
    for task, of_all in predictions.items():
        rows = ~np.isnan(y[task])
        y_t, p = y[task][rows], of_all[rows]
        if task == "conversion":
            y_t = 0.9 * y_t + 0.05
        positive, negative = -y_t * np.log(p), -(1 - y_t) * np.log(1 - p)
        if task == "click":
            positive, negative = 2.0 * positive * (1 - p), negative * p
        losses = (5.0 if task == "page" else 1.0) * positive + negative
        assert logs[f"{task}_loss"] == pytest.approx(losses.mean(), rel=1e-5), task


def test_the_default_loss_is_that_of_keras():
    assert type(loss_of(LossConfig())) is keras.losses.BinaryCrossentropy
    smoothed = loss_of(LossConfig(label_smoothing=0.2))
    assert type(smoothed) is keras.losses.BinaryCrossentropy and smoothed.label_smoothing == 0.2
    focal = loss_of(LossConfig.model_validate({"kind": "focal"}))
    assert isinstance(focal, WeightedBinaryCrossentropy) and (focal.gamma, focal.pos_weight) == (2.0, 1.0)


def test_a_condition_that_does_not_fit_the_table(files):
    for where, words in (("clikced == 1", 'Did you mean "clicked"'), ("clicked == 2", '"2" of `where` never occurs')):
        settings = config(data=files, tasks={**TASKS, "page": {**TASKS["page"], "where": where}})
        with pytest.raises(UserError, match=words):
            prepare(settings, read_tables(settings.data))
    with pytest.raises(
        UserError, match=r'"page" decides which rows have the label of task "page" \(where: page != shop\)'
    ):
        config(features={"categorical": ["page"]})
