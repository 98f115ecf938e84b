"""The rows that a config names: training, validation and test part, which are read when they are asked for."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Literal

import pyarrow as pa

from gradalign.data import DataFile, Part, Split
from gradalign.data.cache import Cache
from gradalign.data.made import MadeTable
from gradalign.datasets import Synthetic, synthetic
from gradalign.datasets.census_income import SPLIT_SEED, TEST_FILE, TRAIN_FILE, training_table
from gradalign.datasets.synthetic import VERSION
from gradalign.training.data_config import DataConfig
from gradalign.training.synthetic_config import SyntheticConfig

_UNKNOWN_MEMORY = 8 << 30  # of a machine that does not say how much it has


@dataclasses.dataclass(frozen=True)
class Tables:
    """The three parts of a data set; `validation` is None where the config has none.

    Args:
        train: the training part.
        validation: measured while training.
        test: measured at the end.
        memory_limit: bytes; where reading all parts into memory takes more, they are read in parts. None for no limit.
        cache: of what is learnt and encoded in memory; None for none.
    """

    train: Part
    validation: Part | None
    test: Part
    memory_limit: int | None = None
    cache: Cache | None = None

    @functools.cached_property
    def is_streamed(self) -> bool:
        """Whether Parquet files are read in parts, as they need more memory than the limit."""
        files = {part.file for part in (self.train, self.validation, self.test) if part is not None}
        need = sum(file.memory for file in files if file.is_parquet) if self.memory_limit is not None else 0
        return self.memory_limit is not None and need > self.memory_limit


def read_tables(data: DataConfig) -> Tables:
    """Return the parts that the config's `data` names, split as it says; rows are read when they are asked for.

    Raises:
        UserError: a file is missing.

    >>> read_tables(DataConfig(dataset="census-income", limit=100)).train.rows
    100
    """
    cache = Cache() if data.cache else None
    if data.synthetic is not None:
        made = (Part(of_part, None, data.limit) for of_part in _drawn(data.synthetic))
        return Tables(next(made), next(made), next(made), None, cache)
    if data.dataset is not None:
        train, test = _census_training(data), DataFile(TEST_FILE)
        validation = None
        fraction: tuple[float, Literal["train", "test"]] | None = (0.5, "test")
    else:
        assert data.train is not None and data.test is not None  # the schema asks for both
        train = DataFile(data.train)

        def types() -> dict[str, str]:
            # A CSV holds none, and what looks like a number need not be one.
            return column_types(train.schema)

        test = DataFile(data.test, types)
        fraction = data.validation_fraction
        is_path = fraction is None and data.validation is not None
        validation = DataFile(str(data.validation), types) if is_path else None

    def part(file: DataFile, of: str, first: bool = False) -> Part:
        # Not the run's seed: runs with different seeds measure on the same rows.
        split = Split(fraction[0], SPLIT_SEED, first) if fraction is not None and fraction[1] == of else None
        return Part(file, split, data.limit)

    measured = None if validation is None else Part(validation, None, data.limit)
    if fraction is not None:
        measured = part(test if fraction[1] == "test" else train, fraction[1], first=True)
    limit = None if data.dataset is not None else memory_limit(data.memory_gb)
    return Tables(part(train, "train"), measured, part(test, "test"), limit, cache)


def synthetic_data(settings: SyntheticConfig) -> Synthetic:
    """Return the data set that a config's `data.synthetic` describes, with the oracle's AUC on its test rows.

    Raises:
        UserError: values that do not go together.

    >>> synthetic_data(SyntheticConfig(rows=50, validation_rows=10, test_rows=10)).train.num_rows
    50
    """
    return synthetic(**settings.model_dump())


def _drawn(settings: SyntheticConfig) -> list[MadeTable]:
    """Training, validation and test part, drawn together when the first of them is asked for."""
    drawn = functools.cache(lambda: synthetic_data(settings))
    identity = f"synthetic {VERSION} {settings.model_dump_json()}"
    return [
        MadeTable(f"{identity} {part}", lambda part=part: getattr(drawn(), part))  # type: ignore[misc]
        for part in ("train", "validation", "test")
    ]


def _census_training(data: DataConfig) -> DataFile:
    file = DataFile(TRAIN_FILE)
    if not data.labelled_rows:
        return file
    few = (dict(data.labelled_rows), data.label_seed, data.limit)
    return MadeTable(f"{file.identity} few labels {few}", lambda: training_table(*few))


def memory_limit(gigabytes: float | None) -> int:
    """Return `gigabytes` in bytes; where it is None, half of this machine's memory.

    >>> memory_limit(2.0) == 2 * 2**30
    True
    """
    if gigabytes is not None:
        return int(gigabytes * 2**30)
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = _UNKNOWN_MEMORY
    return memory // 2


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Column -> Arrow type name, for reading a CSV with the types of another file; lists and times are left out.

    >>> column_types(pa.table({"zip": ["0151"], "age": [31], "tags": [["a"]]}).schema)
    {'zip': 'string', 'age': 'int64'}
    """
    plain = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema}
    wanted = (pa.types.is_string, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return {name: str(kind) for name, kind in plain.items() if any(is_kind(kind) for is_kind in wanted)}
