"""A small shop's tables, a config for them, and one run trained on it that several tests look at."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gradalign.cli import main

CONFIG = """\
data: {train: train.parquet, test: test.parquet, validation: 0.4 of test}
tasks:
  buy: {label: bought, positive: 1}
  like: {label: liked, positive: [very, "yes"]}
features: {drop: [id]}
model: {shared_dim: 3, private_dim: 2, towers: [6], dropout: 0.2}
training: {batch_size: 60, epochs: 2, learning_rate: 1e-2, seed: 3}
"""


def shop_table(rows: int, seed: int) -> pa.Table:
    """Rows of a shop: text, numbers, lists, missing cells, two labels of which one is missing here and there."""
    draw = np.random.default_rng(seed)
    age = draw.uniform(18, 80, rows)
    city = draw.choice(["Oslo", "Rome", "Lima"], rows)
    visits = draw.integers(0, 500, rows).astype("int32")
    tags = [[str(tag) for tag in draw.choice(list("abcde"), draw.integers(0, 4))] for _ in range(rows)]
    interest = (age > 45) + (city == "Rome") + draw.normal(0, 0.5, rows)
    liked = np.where(interest > 1.5, "very", np.where(interest > 1.0, "yes", "no"))

    def gaps(values: np.ndarray, share: float) -> pa.Array:
        return pa.array(values.tolist(), mask=draw.random(rows) < share)

    return pa.table(
        {
            "id": np.arange(rows),
            "age": gaps(age, 0.1),
            "city": gaps(city, 0.1),
            "visits": visits,
            "tags": tags,
            "bought": (interest + draw.normal(0, 0.5, rows) > 1.2).astype("int64"),
            "liked": gaps(liked, 0.3),
        }
    )


# click 8.1 mixes stderr into stdout unless it is told; from 8.2 on they are apart and there is no such argument.
SEPARATE = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def invoke(*arguments: object) -> Result:
    """Run `gradalign` in this process; what is not a UserError is raised here."""
    return CliRunner(**SEPARATE).invoke(main, [str(a) for a in arguments], catch_exceptions=False)


@contextmanager
def quicker_training() -> Iterator[None]:
    """Train eagerly and write no served model, for what looks at neither: both take seconds."""
    from gradalign import MultiTaskModel
    from gradalign.training import run

    fit = MultiTaskModel.fit

    def fit_eagerly(self: MultiTaskModel, *args: Any, **kwargs: Any) -> Any:
        self.run_eagerly = True
        return fit(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiTaskModel, "fit", fit_eagerly)
        patch.setattr(run, "write_serving", lambda preprocessing, base, folder: folder.mkdir())
        yield


@pytest.fixture
def quick_training() -> Iterator[None]:
    with quicker_training():
        yield


@dataclasses.dataclass(frozen=True)
class Shop:
    """A folder with train.parquet, test.parquet and shop.yaml."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "shop.yaml"

    def invoke(self, *arguments: object) -> Result:
        return invoke(*arguments)


def make_shop(folder: Path) -> Shop:
    pq.write_table(shop_table(300, 1), folder / "train.parquet")
    pq.write_table(shop_table(150, 2), folder / "test.parquet")
    (folder / "shop.yaml").write_text(CONFIG)
    return Shop(folder)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop of the test's own."""
    return make_shop(tmp_path)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A finished run, which tests must not change, and what `gradalign train` printed."""

    shop: Shop
    run: Path
    printed: Result


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One run for all tests of a worker."""
    shop = make_shop(tmp_path_factory.mktemp("shop"))
    run = shop.folder / "run"
    return Trained(shop, run, invoke("train", shop.config, "--out", run, "--set", "training.monitor_every=3"))
