"""The best checkpoint by the tasks' validation AUCs: which epoch is kept, when training stops, what is refused."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from gradalign import MultiTaskModel, UserError
from gradalign.callbacks import BestCheckpoint


class FakeModel:
    """Stands for a model: writes the epoch it was saved in."""

    def __init__(self) -> None:
        self.stop_training = False
        self.epoch = -1

    def save(self, path: Path) -> None:
        Path(path).write_text(str(self.epoch), encoding="utf-8")


def run(callback: BestCheckpoint, means: list[tuple[float, float]]) -> tuple[FakeModel, list[dict[str, float]]]:
    model, seen = FakeModel(), []
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, (a, b) in enumerate(means):
        model.epoch = epoch
        seen.append({"val_a_AUC": a, "val_b_auc_1": b, "val_loss": 9.0, "a_AUC": 1.0})
        callback.on_epoch_end(epoch, seen[-1])
        if model.stop_training:
            break
    return model, seen


def test_keeps_the_epoch_with_the_best_weighted_mean(tmp_path: Path):
    path = tmp_path / "deep" / "best.keras"
    callback = BestCheckpoint(path, weights={"a": 3, "b": 1})
    _, seen = run(callback, [(0.6, 0.9), (0.8, 0.4), (0.7, 0.6)])
    # (3*.6+.9)/4 = .675, (3*.8+.4)/4 = .7, (3*.7+.6)/4 = .675
    np.testing.assert_allclose([logs["val_mean_auc"] for logs in seen], [0.675, 0.7, 0.675])
    assert path.read_text(encoding="utf-8") == "1"
    assert (callback.best_epoch, callback.best) == (1, pytest.approx(0.7))
    assert [p.name for p in path.parent.iterdir()] == ["best.keras"]


def test_all_tasks_weigh_the_same_unless_told(tmp_path: Path):
    callback = BestCheckpoint(tmp_path / "best.keras")
    _, seen = run(callback, [(0.6, 0.8)])
    assert seen[0]["val_mean_auc"] == pytest.approx(0.7)


def test_stops_after_patience_epochs_without_a_better_one(tmp_path: Path):
    model, seen = run(
        BestCheckpoint(tmp_path / "best.keras", patience=2), [(0.7, 0.7), (0.6, 0.6), (0.7, 0.7), (0.9, 0.9)]
    )
    assert model.stop_training and len(seen) == 3
    model, seen = run(
        BestCheckpoint(tmp_path / "best.keras", patience=2), [(0.7, 0.7), (0.6, 0.6), (0.8, 0.8), (0.7, 0.7)]
    )
    assert not model.stop_training and len(seen) == 4
    model, _ = run(BestCheckpoint(tmp_path / "best.keras", patience=1, min_delta=0.2), [(0.7, 0.7), (0.8, 0.8)])
    assert model.stop_training


def test_a_task_without_validation_auc_is_named(tmp_path: Path):
    with pytest.raises(UserError, match='no validation AUC of task "buy"'):
        run(BestCheckpoint(tmp_path / "best.keras", weights={"buy": 1}), [(0.5, 0.5)])
    with pytest.raises(UserError, match="There is no validation AUC to choose"):
        BestCheckpoint(tmp_path / "best.keras").mean({"val_loss": 1.0, "a_AUC": 0.5})


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({"path": "best.h5"}, "best.h5"),
        ({"path": "best.keras", "weights": {}}, "{}"),
        ({"path": "best.keras", "weights": {"a": -1.0}}, "-1.0"),
        ({"path": "best.keras", "weights": {"a": 0}}, "0"),
        ({"path": "best.keras", "patience": 0}, "0"),
    ],
)
def test_wrong_arguments_are_quoted(arguments: dict, received: str):
    with pytest.raises(UserError) as error:
        BestCheckpoint(**arguments)
    assert received in str(error.value)


def test_the_kept_model_is_the_one_of_the_best_epoch(tmp_path: Path):
    """Under fit, with real AUCs: the file scores the validation data as the best epoch did."""
    x = keras.Input((2,), name="x")
    hidden = keras.layers.Dense(4, activation="tanh")(x)
    base = keras.Model(x, {t: keras.layers.Dense(1, activation="sigmoid", name=t)(hidden) for t in ("up", "down")})
    model = MultiTaskModel(base)
    model.compile(
        keras.optimizers.SGD(2.0),
        loss="binary_crossentropy",
        metrics={t: [keras.metrics.AUC(name="auc")] for t in ("up", "down")},
        run_eagerly=True,
    )
    rng = np.random.default_rng(3)
    values = rng.normal(size=(64, 2)).astype("float32")
    labels = {
        "up": (values[:, 0] + rng.normal(size=64) > 0) * 1.0,
        "down": (values[:, 1] + rng.normal(size=64) < 0) * 1.0,
    }
    callback = BestCheckpoint(tmp_path / "best.keras")
    history = model.fit(
        values, labels, batch_size=32, epochs=3, validation_data=(values, labels), callbacks=[callback], verbose=0
    ).history
    assert callback.best_epoch == int(np.argmax(history["val_mean_auc"]))
    kept = keras.models.load_model(tmp_path / "best.keras").evaluate(values, labels, verbose=0, return_dict=True)
    assert (kept["up_auc"] + kept["down_auc"]) / 2 == pytest.approx(callback.best, abs=1e-6)
