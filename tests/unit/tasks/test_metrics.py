"""Figures in the logs: means of the whole epoch, over labelled rows."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks import TaskLogs, TaskMetrics, WeightedMean, labelled_rows, metrics_by_task

NAN = float("nan")


def test_weighted_mean_over_batches():
    """(6 + 1) / (3 + 0.5), whatever the batches; 0 before any."""
    mean = WeightedMean("loss")
    assert float(mean.result()) == 0.0
    mean.update_state(tf.constant(6.0), tf.constant(3.0))
    mean.update_state(tf.constant(1.0, tf.float16), tf.constant(0.5, tf.float64))
    assert float(mean.result()) == 2.0
    mean.reset_state()
    assert float(mean.result()) == 0.0


def rows(y, weight=None):
    return labelled_rows(tf.constant(y), None if weight is None else tf.constant(weight), "float32")


def test_metrics_see_labelled_rows_only():
    """a: |1-0.5|, |0-0.5| of rows 0, 2; b: of row 1 alone, in a second batch of row 0 too."""
    metrics = TaskMetrics({"a": ["mae"], "b": ["mae"]}, {})
    metrics.update_state(
        {"a": rows([1.0, NAN, 0.0]), "b": rows([NAN, 4.0, NAN])},
        {"a": tf.constant([[0.5], [NAN], [0.5]]), "b": tf.constant([[7.0], [1.0], [7.0]])},
    )
    assert {name: float(v) for name, v in metrics.result().items()} == {
        "a_mae": 0.5,
        "b_mae": 3.0,
    }
    metrics.update_state({"a": rows([NAN]), "b": rows([1.0])}, {"a": tf.constant([[9.0]]), "b": tf.constant([[0.0]])})
    assert {name: float(v) for name, v in metrics.result().items()} == {
        "a_mae": 0.5,
        "b_mae": 2.0,
    }
    metrics.reset_state()
    assert float(metrics.result()["b_mae"]) == 0.0


def test_sample_weights_count_in_weighted_metrics_only():
    """Errors 1 and 4: mean 2.5; weighted 3 to 1, 7/4; a weight of 0 is no label in either."""
    metrics = TaskMetrics({"a": ["mae"]}, {"a": ["mae"]})
    metrics.update_state({"a": rows([0.0, 0.0, 0.0], [3.0, 1.0, 0.0])}, {"a": tf.constant([[1.0], [4.0], [100.0]])})
    found = {name: float(v) for name, v in metrics.result().items()}
    assert found == {"a_mae": 2.5, "a_weighted_mae": 1.75}


def test_auc_of_a_column_and_of_plain_rows():
    """Scores 0.9, 0.4 | 0.6, 0.1 of positives | negatives: 3 of 4 pairs in order."""
    metrics = TaskMetrics({"a": ["AUC"], "b": [keras.metrics.AUC(name="auc")]}, {})
    y, p = [1.0, 1.0, 0.0, 0.0, NAN], [0.9, 0.4, 0.6, 0.1, 0.99]
    metrics.update_state({"a": rows(y), "b": rows(y)}, {"a": tf.constant(p), "b": tf.constant(p)[:, None]})
    assert {name: float(v) for name, v in metrics.result().items()} == pytest.approx(
        {"a_AUC": 0.75, "b_auc": 0.75}, abs=1e-3
    )


def test_accuracy_is_chosen_by_the_shapes():
    metrics = TaskMetrics({"click": ["accuracy"], "kind": ["accuracy"]}, {})
    specs = {"click": tf.TensorSpec([None, 1]), "kind": tf.TensorSpec([None], "int32")}
    metrics.build(specs, {"click": tf.TensorSpec([None, 1]), "kind": tf.TensorSpec([None, 3])})
    kinds = [type(metric).__name__ for _, _, metric, _ in metrics.built_metrics]
    assert kinds == ["BinaryAccuracy", "SparseCategoricalAccuracy"]
    metrics.update_state(
        {"click": rows([[1.0], [0.0]]), "kind": rows([2, 0])},
        {"click": tf.constant([[0.9], [0.8]]), "kind": tf.constant([[0.0, 0.1, 0.9], [0.8, 0.1, 0.1]])},
    )
    assert {name: float(v) for name, v in metrics.result().items()} == {"click_accuracy": 0.5, "kind_accuracy": 1.0}


def test_equal_names_are_told_apart():
    metrics = TaskMetrics({"a": [keras.metrics.AUC(name="auc"), keras.metrics.AUC(curve="PR", name="auc")]}, {})
    metrics.build({"a": tf.TensorSpec([None, 1])}, {"a": tf.TensorSpec([None, 1])})
    assert [name for name, *_ in metrics.built_metrics] == ["a_auc", "a_auc_1"]


def test_metrics_are_made_once():
    metrics = TaskMetrics({"a": ["mae"]}, {})
    for _ in range(2):
        metrics.update_state({"a": rows([1.0])}, {"a": tf.constant([[0.0]])})
    assert len(metrics.built_metrics) == 1 and len(metrics.variables) == 2


def test_logs():
    logs = TaskLogs({"a": 1.0, "b": 0.5}, TaskMetrics({}, {}))
    names = [metric.name for metric in logs.all(training=True, aligned=True)]
    assert names == ["loss", "a_loss", "b_loss", "regularization_loss", "alignment_loss", "task_metrics"]
    for training, aligned in ((False, True), (True, False)):
        assert "alignment_loss" not in [metric.name for metric in logs.all(training=training, aligned=aligned)]


def test_the_loss_of_an_evaluation_is_put_together_from_the_tasks_means():
    logs = TaskLogs({"a": 1.0, "b": 0.5}, TaskMetrics({}, {}))
    given = {"loss": 99.0, "a_loss": 2.0, "b_loss": 4.0, "regularization_loss": 0.25, "a_auc": 0.5}
    assert logs.read(given, training=False) == {"loss": 4.25, "a_loss": 2.0, "b_loss": 4.0, "a_auc": 0.5}
    assert logs.read(given, training=True)["loss"] == 99.0
    assert "regularization_loss" in given


def test_metrics_by_task():
    auc = keras.metrics.AUC()
    assert metrics_by_task(None, ["a", "b"], "metrics") == {}
    assert metrics_by_task({"b": ["mae", auc], "a": "mae"}, ["a", "b"], "metrics") == {"a": ["mae"], "b": ["mae", auc]}
    assert metrics_by_task({"a": None, "b": []}, ["a", "b"], "metrics") == {"b": []}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["AUC"], r"weighted_metrics is a dict keyed by task.*received \['AUC'\]"),
        (
            {"click": ["AUC"]},
            'weighted_metrics names an unknown task "click"; the tasks are clicks, buy. Did you mean "clicks"',
        ),
    ],
    ids=["list", "unknown"],
)
def test_metrics_that_do_not_fit(metrics, message):
    with pytest.raises(UserError, match=message):
        metrics_by_task(metrics, ["clicks", "buy"], "weighted_metrics")
