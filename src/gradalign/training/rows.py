"""The rows that a config names: training, validation and test, as tables."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from gradalign.data import read_table, split_rows
from gradalign.datasets import census_income
from gradalign.training.config import DataConfig

SPLIT_SEED = 0  # of "0.5 of test": not the run's seed, so that runs with different seeds measure on the same rows


@dataclasses.dataclass(frozen=True)
class Tables:
    """The three parts of a data set; `validation` is None where the config has none."""

    train: pa.Table
    validation: pa.Table | None
    test: pa.Table


def read_tables(data: DataConfig) -> Tables:
    """Read the parts that the config's `data` names, split as it says.

    Raises:
        UserError: a file is missing or damaged.

    >>> read_tables(DataConfig(dataset="census-income", limit=100)).train.num_rows
    100
    """
    if data.dataset is not None:
        census = census_income()
        tables = Tables(census.train, census.validation, census.test)
    else:
        tables = _read_files(data)
    if data.limit is None:
        return tables
    validation = None if tables.validation is None else tables.validation.slice(0, data.limit)
    return Tables(tables.train.slice(0, data.limit), validation, tables.test.slice(0, data.limit))


def _read_files(data: DataConfig) -> Tables:
    assert data.train is not None and data.test is not None  # the schema asks for both
    train = read_table(data.train)
    types = column_types(train)  # a CSV holds none, and what looks like a number need not be one
    test = read_table(data.test, types)
    if data.validation is None:
        return Tables(train, None, test)
    fraction = data.validation_fraction
    if fraction is None:
        return Tables(train, read_table(data.validation, types), test)
    share, part = fraction
    if part == "test":
        validation, test = split_rows(test, share, SPLIT_SEED)
    else:
        validation, train = split_rows(train, share, SPLIT_SEED)
    return Tables(train, validation, test)


def column_types(table: pa.Table) -> dict[str, str]:
    """Column -> Arrow type name, for reading a CSV with the types of `table`; lists and times are left out.

    >>> column_types(pa.table({"zip": ["0151"], "age": [31], "tags": [["a"]]}))
    {'zip': 'string', 'age': 'int64'}
    """
    plain = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema}
    wanted = (pa.types.is_string, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return {name: str(kind) for name, kind in plain.items() if any(is_kind(kind) for is_kind in wanted)}
