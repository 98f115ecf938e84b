"""Census-Income (KDD): the bundled data set, with the tasks and the protocol of the MMoE paper (Ma et al., KDD 2018).

Source: UCI Machine Learning Repository, data set 117, doi 10.24432/C5N30T, licence CC BY 4.0; see README.md beside this
file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradalign.data.inference import infer_schema
from gradalign.data.readers import read_table, split_rows
from gradalign.data.schema import Schema, TaskSpec
from gradalign.datasets.few_labels import with_few_labels
from gradalign.errors import UserError, nearest

TRAIN_FILE = Path(__file__).with_name("train.parquet")
TEST_FILE = Path(__file__).with_name("test.parquet")
SPLIT_SEED = 0

TASKS = {
    "income": TaskSpec("income_50k", ("50000+.",)),
    "college": TaskSpec(
        "education",
        (
            "Some college but no degree",
            "Associates degree-academic program",
            "Associates degree-occup /vocational",
            "Bachelors degree(BA AB BS)",
            "Masters degree(MA MS MEng MEd MSW MBA)",
            "Prof school degree (MD DDS DVM LLB JD)",
            "Doctorate degree(PhD EdD)",
        ),
    ),
    "never_married": TaskSpec("marital_stat", ("Never married",)),
}

# Numbers in meaning; the other columns of whole numbers are codes.
NUMERIC = ("age", "wage_per_hour", "capital_gains", "capital_losses", "stock_dividends", "num_emp", "weeks_worked")
CODES = ("det_ind_code", "det_occ_code", "own_or_self", "vet_benefits", "year")


@dataclasses.dataclass(frozen=True)
class CensusIncome:
    """The data set: three tables and what their columns are.

    Args:
        train: the official training file, 199,523 rows.
        validation: half of the official test file, drawn at random with a fixed seed, 49,881 rows.
        test: the other half, 49,881 rows.
        schema: tasks income, college and never_married, whose label columns are no features; 7 numbers, 31 categories.
    """

    train: pa.Table
    validation: pa.Table
    test: pa.Table
    schema: Schema

    @property
    def tasks(self) -> dict[str, TaskSpec]:
        """Task name -> `TaskSpec`."""
        return dict(self.schema.tasks)


def features() -> dict[str, Any]:
    """Return the `features:` part of the data set's config; what it does not name is text, hence categorical.

    >>> sorted(features())
    ['categorical', 'numeric']
    """
    return {"numeric": {c: {} for c in NUMERIC}, "categorical": {c: {} for c in CODES}}


def training_table(
    labelled_rows: Mapping[str, int] | None = None, label_seed: int = 0, limit: int | None = None
) -> pa.Table:
    """Return the training part, or its first `limit` rows; arguments and errors are those of `census_income`.

    >>> training_table({"income": 10}, limit=1000)["income_50k"].null_count
    990
    """
    columns = {}
    for task, count in (labelled_rows or {}).items():
        if task not in TASKS:
            raise UserError(
                f'labelled_rows names "{task}", which is no task of Census-Income; it has {", ".join(TASKS)}.'
                f"{nearest(str(task), TASKS)}"
            )
        columns[TASKS[task].label] = count
    table = read_table(TRAIN_FILE)
    return with_few_labels(table if limit is None else table.slice(0, limit), columns, label_seed)


def census_income(labelled_rows: Mapping[str, int] | None = None, *, label_seed: int = 0) -> CensusIncome:
    """Return the bundled Census-Income data set, from the files in the package.

    Args:
        labelled_rows: {task: number of training rows that keep its label}; tasks that it does not name keep all.
            Validation and test part keep all labels. In a config: `data.labelled_rows`.
        label_seed: of the draw of these rows. In a config: `data.label_seed`.

    Raises:
        UserError: for a task that the data set lacks, or a number of rows out of range.

    Example:

    >>> data = census_income({"income": 2000})
    >>> data.train.num_rows, data.validation.num_rows, data.test.num_rows
    (199523, 49881, 49881)
    >>> data.train["income_50k"].null_count, data.train["education"].null_count
    (197523, 0)
    >>> list(data.tasks)
    ['income', 'college', 'never_married']
    """
    train = training_table(labelled_rows, label_seed)
    validation, test = split_rows(read_table(TEST_FILE), 0.5, SPLIT_SEED)
    return CensusIncome(train, validation, test, infer_schema(train, TASKS, features()))
