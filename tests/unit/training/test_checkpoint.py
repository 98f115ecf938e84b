"""What an epoch leaves, and that a loss which is not a number leaves nothing."""

from __future__ import annotations

import keras
import pytest

from gradalign.errors import UserError
from gradalign.training.checkpoint import Checkpoint, last_checkpoint, remove_checkpoints


def _checkpoint(folder, history=()):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    checkpoint = Checkpoint(folder, list(history))
    checkpoint.set_model(model)
    return checkpoint


def test_only_the_last_epoch_is_kept_with_all_of_the_history(tmp_path):
    checkpoint = _checkpoint(tmp_path)
    for epoch in range(3):
        checkpoint.on_epoch_begin(epoch)
        checkpoint.on_epoch_end(epoch, {"loss": 1.0 / (epoch + 1)})
    assert {path.name for path in tmp_path.iterdir()} == {"history.csv", "checkpoint-00003.keras"}
    path, history = last_checkpoint(tmp_path)
    assert path == tmp_path / "checkpoint-00003.keras"
    assert [(row["epoch"], row["loss"]) for row in history] == [(1.0, 1.0), (2.0, 0.5), (3.0, 1.0 / 3)]
    assert history == checkpoint.history  # to the last digit
    assert all(row["seconds"] > 0 for row in history)
    remove_checkpoints(tmp_path)
    assert last_checkpoint(tmp_path) == (None, [])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_a_number_ends_the_run_in_words(tmp_path, value):
    with pytest.raises(UserError, match=r"buy_loss became .* in epoch 2; lower training\.learning_rate"):
        _checkpoint(tmp_path).on_epoch_end(1, {"loss": 1.0, "buy_loss": value})
    assert list(tmp_path.iterdir()) == []
