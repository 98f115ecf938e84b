"""What a user sees: a bar with rate and time left on a terminal, plain lines elsewhere, and the table."""

from __future__ import annotations

import io
import time

from rich.console import Console

from gradalign.training.progress import Counter, TrainingProgress, results_table


def _console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, legacy_windows=False)


def _train(console, epochs=2, steps=3):
    with TrainingProgress(console, rows=250, epochs=epochs, batch_size=100) as progress:
        for epoch in range(epochs):
            progress.on_epoch_begin(epoch)
            for step in range(steps):
                time.sleep(0.12)  # the bar is drawn ten times a second
                progress.on_train_batch_end(step)
            progress.on_epoch_end(epoch, {"loss": 0.5, "val_buy_auc": 0.75})
    return console.file.getvalue()


def test_a_terminal_shows_a_bar_with_rate_and_time_left():
    said = _train(_console(terminal=True))
    assert "Epoch 1/2" in said and "Epoch 2/2" in said
    assert "rows/s" in said and "/500" in said and "500/500" in said and "00:0" in said
    assert "epoch 2/2  loss 0.5000  val_buy_auc 0.7500" in said


def test_elsewhere_there_is_one_line_an_epoch():
    said = _train(_console(terminal=False))
    assert said == "epoch 1/2  loss 0.5000  val_buy_auc 0.7500\nepoch 2/2  loss 0.5000  val_buy_auc 0.7500\n"


def test_a_counter_counts_with_and_without_a_terminal():
    for terminal in (True, False):
        console = _console(terminal)
        with Counter(console, "Scoring") as counter:
            counter(64, 150)
            counter(150, 150)
        assert counter.rows == 150
        assert ("150/150" in console.file.getvalue()) is terminal


def test_the_table_says_no_value_where_there_is_none():
    console = _console(terminal=False)
    metrics = {"buy": {"auc": None, "log_loss": 0.25, "rows": 1234, "positives": 0}}
    console.print(results_table(metrics, {"discriminator_accuracy": 0.61234, "chance": 0.5}, "the test part"))
    said = console.file.getvalue()
    for words in (
        "Metrics on the test part",
        "buy",
        "no value",
        "0.2500",
        "1,234",
        "accuracy 0.6123 (chance 0.5000)",
        "last epoch",
    ):
        assert words in said
