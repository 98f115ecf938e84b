"""`evaluate`, `predict` and `export`: the same scores everywhere, in TensorFlow alone too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from gradalign.training.evaluate import evaluate
from gradalign.training.run_folder import Run
from tests.integration.conftest import invoke

SERVE = """
import sys
sys.modules["gradalign"] = None  # any import of it fails
import numpy as np, tensorflow as tf
folder, rows, out = sys.argv[1:]
model = tf.saved_model.load(folder)
serve = model.signatures["serving_default"]
raw = {name: tf.constant(value) for name, value in np.load(rows).items()}
for spec in serve.structured_input_signature[1].values():
    assert spec.shape[0] is None, spec
assert not any(word in v.name for v in model.variables for word in ("discriminator", "optimizer", "alignment", "step"))
np.savez(out, one=serve(**{name: value[:1] for name, value in raw.items()})["buy"],
         **{task: score.numpy() for task, score in serve(**raw).items()})
"""


@pytest.fixture
def measured(monkeypatch):
    """What `gradalign evaluate` measures, to the last digit; it prints some of them."""
    found = []
    monkeypatch.setattr(
        "gradalign.training.evaluate.evaluate", lambda *given: found.append(evaluate(*given)) or found[-1]
    )
    return found


def test_evaluate_says_what_training_said(trained, measured):
    run = Run.open(trained.run)
    printed = trained.shop.invoke("evaluate", trained.run)
    assert printed.exit_code == 0
    assert measured == [run.metrics["test"]]
    assert f"{run.metrics['test']['buy']['auc']:.4f}" in printed.stdout


def test_evaluate_takes_another_file_and_says_when_there_is_no_auc(trained, measured, tmp_path):
    table = pq.read_table(trained.shop.folder / "train.parquet")
    pq.write_table(table.filter(pa.compute.equal(table["bought"], 1)), tmp_path / "buyers.parquet")
    printed = trained.shop.invoke("evaluate", trained.run, "--data", tmp_path / "buyers.parquet")
    assert printed.exit_code == 0 and "no value" in printed.stdout
    [found] = measured
    assert found["buy"]["auc"] is None and found["buy"]["rows"] == found["buy"]["positives"] > 0
    assert found["like"]["auc"] > 0.5


@pytest.fixture(scope="module")
def predicted(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("scores") / "scores.parquet"
    done = trained.shop.invoke("predict", trained.run, "--data", trained.shop.folder / "test.parquet", "--out", out)
    assert done.exit_code == 0 and "150 rows scored" in done.stdout
    return pq.read_table(out)


def test_predict_keeps_all_columns_and_adds_one_a_task(trained, predicted):
    data = pq.read_table(trained.shop.folder / "test.parquet")
    assert predicted.column_names == [*data.column_names, "buy", "like"]
    assert predicted.select(data.column_names).equals(data)
    for task in ("buy", "like"):
        scores = predicted[task].to_numpy()
        assert scores.dtype == np.float32 and scores.std() > 0 and 0 <= scores.min() <= scores.max() <= 1


def test_predict_needs_no_labels_does_not_depend_on_slices_and_keeps_a_column_of_a_tasks_name(
    trained, predicted, tmp_path, monkeypatch
):
    from gradalign.training import predict

    monkeypatch.setattr(predict, "_ROWS", 64)
    data = pq.read_table(trained.shop.folder / "test.parquet").drop_columns(["bought", "liked"])
    pq.write_table(data.append_column("buy", pa.array(["mine"] * data.num_rows)), tmp_path / "new.parquet")
    seen = []
    predict.predict(
        Run.open(trained.run),
        tmp_path / "new.parquet",
        tmp_path / "out.parquet",
        progress=lambda *rows: seen.append(rows),
    )
    scores = pq.read_table(tmp_path / "out.parquet")
    assert seen == [(64, 150), (128, 150), (150, 150)]
    assert scores.column_names[-3:] == ["buy", "buy_score", "like"] and scores["buy"][0].as_py() == "mine"
    for column, task in (("buy_score", "buy"), ("like", "like")):
        np.testing.assert_allclose(scores[column].to_numpy(), predicted[task].to_numpy(), rtol=0, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.parquet", "out.parquet"]


def test_the_served_model_agrees_in_a_process_with_tensorflow_alone(trained, predicted, tmp_path):
    raw = Run.open(trained.run).preprocessing().raw(pq.read_table(trained.shop.folder / "test.parquet"))
    np.savez(tmp_path / "rows.npz", **{name: _plain(tensor.numpy()) for name, tensor in raw.items()})
    arguments = [trained.run / "serving", tmp_path / "rows.npz", tmp_path / "served.npz"]
    command = [sys.executable, "-c", SERVE, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    served = np.load(tmp_path / "served.npz")
    for task in ("buy", "like"):
        assert served[task].shape == (150, 1)
        np.testing.assert_allclose(served[task][:, 0], predicted[task].to_numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(served["one"], served["buy"][:1], rtol=0, atol=1e-6)


def _plain(values):
    """Text as fixed-width bytes, which a .npz file holds without pickling."""
    return values.astype("S") if values.dtype == object else values


def test_export_renews_the_runs_own_served_model(trained, tmp_path):
    shutil.copytree(trained.run, tmp_path / "run")
    served = tmp_path / "run" / "serving" / "saved_model.pb"
    served.write_bytes(b"damaged")
    done = trained.shop.invoke("export", tmp_path / "run")
    assert done.exit_code == 0 and str(served.parent) in done.stdout
    assert len(served.read_bytes()) > 1000
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in trained.run.iterdir()}


def test_export_replaces_an_older_model_elsewhere(trained, tmp_path, monkeypatch):
    from gradalign.training import export

    def write(preprocessing, base, folder):  # what it writes: the tests above
        folder.mkdir()
        (folder / "saved_model.pb").write_bytes(b"new")

    monkeypatch.setattr(export, "write_serving", write)
    out = tmp_path / "models" / "1"
    out.mkdir(parents=True)
    (out / "saved_model.pb").write_bytes(b"old")
    (out / "left_over").touch()
    done = trained.shop.invoke("export", trained.run, "--out", out, "--overwrite")
    assert done.exit_code == 0 and str(out) in done.stdout
    assert (out / "saved_model.pb").read_bytes() == b"new" and not (out / "left_over").exists()
    assert [path.name for path in out.parent.iterdir()] == ["1"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_training")
def test_csv_in_and_out_without_chatter_in_a_process_of_its_own(tmp_path, monkeypatch):
    """A model on CSV files, where whole numbers have gaps and a code has leading zeros."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    code = rng.choice(["007", "012", "100"], 200)
    table = pa.table(
        {
            "code": code,
            "visits": pa.array([None if value < 5 else int(value) for value in rng.integers(0, 100, 200)]),
            "bought": np.where(code == "007", 1, rng.integers(0, 2, 200)),
            "liked": np.where(code == "100", "yes", "no"),
        }
    )
    pyarrow.csv.write_csv(table, "rows.csv", pyarrow.csv.WriteOptions(quoting_style="needed"))
    Path("csv.yaml").write_text(
        "data: {train: rows.csv, test: rows.csv}\n"
        "tasks: {buy: {label: bought, positive: 1}, like: {label: liked, positive: 'yes'}}\n"
        "model: {towers: [4]}\nalignment: {method: none}\ntraining: {epochs: 1, batch_size: 100}\n"
    )
    done = invoke("train", "csv.yaml", "--out", "run")
    assert done.exit_code == 0
    assert done.stderr.splitlines()[-1].startswith("epoch 1/1") and "val_" not in done.stderr
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-m", "gradalign.cli", "predict", "run", "--data", "rows.csv", "--out", "scores.csv"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    scores = pyarrow.csv.read_csv("scores.csv")
    assert scores.column_names == ["code", "visits", "bought", "liked", "buy", "like"] and scores.num_rows == 200
