"""The READMEs hold: their code runs, both languages show the same code, the table is made of the committed results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh-CN.md")


def code_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def two_task_base() -> keras.Model:
    ids = keras.Input((3,), dtype="int32", name="ids")
    shared = keras.layers.Flatten(name="share_embedding")(keras.layers.Embedding(10, 4)(ids))
    outputs = {}
    for task in ("click", "buy"):
        hidden = keras.layers.Dense(8, activation="gelu")(shared)
        outputs[task] = keras.layers.Dense(1, activation="sigmoid", name=task)(hidden)
    return keras.Model({"ids": ids}, outputs)


def test_both_languages_show_the_same_code() -> None:
    assert code_blocks(READMES[0]) == code_blocks(READMES[1])
    assert len(code_blocks(READMES[0])) == 2


def test_the_wrapper_example_trains_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = {"click": rng.integers(0, 2, 64).astype("float32"), "buy": rng.integers(0, 2, 64).astype("float32")}
    labels["buy"][labels["click"] == 0] = np.nan
    names = {"base": two_task_base(), "x": {"ids": rng.integers(0, 10, (64, 3)).astype("int32")}, "y": labels}
    before = [np.array(w) for w in names["base"].get_weights()]

    exec(code_blocks("README.md")[0], names)

    assert any(np.any(a != b) for a, b in zip(before, names["base"].get_weights(), strict=True))
    served = tf.saved_model.load(str(tmp_path / "serving")).signatures["serving_default"]
    scores = served(ids=tf.constant(names["x"]["ids"]))
    expected = names["model"].predict(names["x"], verbose=0)
    for task in labels:
        np.testing.assert_allclose(scores[task], expected[task], atol=1e-6)


def test_the_own_loop_example_gives_every_variable_a_gradient() -> None:
    import gradalign as ga

    table = tf.Variable(keras.random.normal([10, 4]))
    towers = {
        task: keras.Sequential([keras.layers.Dense(8, "gelu"), keras.layers.Dense(1)]) for task in ("click", "buy")
    }
    labels = tf.constant([1.0, 0.0, 1.0, 1.0])

    def row_loss(task: str):
        return lambda s: tf.nn.sigmoid_cross_entropy_with_logits(labels, towers[task](s)[:, 0])

    for tower in towers.values():
        tower.build((None, 4))
    names = {
        "ga": ga,
        "tf": tf,
        "x": tf.constant([1, 5, 5, 7]),
        "encoder": lambda ids: tf.gather(table, ids),
        "click_loss": row_loss("click"),
        "buy_loss": row_loss("buy"),
        "variables": [table, *(v.value for tower in towers.values() for v in tower.trainable_variables)],
    }

    exec(code_blocks("README.md")[1], names)

    assert all(gradient is not None for gradient in names["gradients"])


def test_the_table_is_made_of_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import census_income_pairs

    rows = census_income_pairs.read_results()
    seeds = {method: {row["seed"] for row in rows if row["method"] == method} for method in census_income_pairs.METHODS}
    assert seeds["none"] == seeds["adversarial"] and len(seeds["none"]) >= 10
    table = census_income_pairs.table(rows)
    activity = census_income_pairs.activity(rows)
    for name in READMES:
        figures = re.findall(r"[+-]?0\.\d{3,5}", table + activity)
        assert figures and all(figure in (ROOT / name).read_text(encoding="utf-8") for figure in figures), name
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table in readme
    assert activity in readme
    sys.modules.pop("census_income_pairs")
