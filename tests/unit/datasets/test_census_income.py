import time

import numpy as np
import pytest

from gradalign import UserError
from gradalign.data import Preprocessing, labels, read_table
from gradalign.datasets import census_income
from gradalign.datasets.census_income import CODES, NUMERIC, TEST_FILE, TRAIN_FILE, training_table


@pytest.fixture(scope="module")
def data():
    return census_income()


def test_the_files_and_their_source_are_in_the_package():
    assert (TRAIN_FILE.name, TEST_FILE.name) == ("train.parquet", "test.parquet")
    readme = TRAIN_FILE.with_name("README.md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in readme and "10.24432/C5N30T" in readme


def test_rows_of_each_part(data):
    assert [t.num_rows for t in (data.train, data.validation, data.test)] == [199_523, 49_881, 49_881]
    assert data.train.schema == data.validation.schema == data.test.schema


def test_base_rates_are_those_of_the_paper(data):
    """MMoE, section 6, and the data set's README: 6.2 %, 33.6 %, 43.3 % of the training rows."""
    rates = {task: float(np.mean(values)) for task, values in labels(data.train, data.schema).items()}
    assert list(rates) == ["income", "college", "never_married"]
    assert [round(r, 3) for r in rates.values()] == [0.062, 0.336, 0.433]
    for part in (data.validation, data.test):
        for task, values in labels(part, data.schema).items():
            assert not np.isnan(values).any()
            assert np.mean(values) == pytest.approx(rates[task], abs=0.01)


def test_the_split_is_fixed_and_a_partition(data):
    """Frozen: published numbers are of these rows. Ages tell the halves apart, and together they are the file's."""
    ages = [int(t["age"].to_numpy().astype("int64").sum()) for t in (data.validation, data.test)]
    again = census_income()
    assert again.validation.equals(data.validation) and again.test.equals(data.test)
    assert ages == [1_730_514, 1_724_104]
    assert sum(ages) == int(read_table(TEST_FILE)["age"].to_numpy().astype("int64").sum())


def test_labels_are_no_features(data):
    columns = data.schema.columns
    assert not {"education", "marital_stat", "income_50k"} & set(columns)
    assert len(columns) == 38
    assert tuple(data.schema.numeric) == NUMERIC
    assert set(CODES) <= set(data.schema.categorical)
    assert not data.schema.drop and not data.schema.multi_valued


def test_all_of_it_is_encoded_in_a_few_seconds(data):
    preprocessing = Preprocessing.fit(data.train, data.schema)
    start = time.process_time()
    encoded = preprocessing.encode(data.train)
    assert time.process_time() - start < 15  # 1 to 3 on two cores
    assert len(encoded) == 38
    for name, ids in encoded.items():
        assert ids.shape == (199_523,)
        assert ids.min() >= 1  # nothing is missing
        assert ids.max() < preprocessing.fields[name].size
    ages = data.train["age"].to_numpy()
    assert np.all(np.diff(encoded["age"][np.argsort(ages, kind="stable")]) >= 0)
    shares = np.bincount(encoded["age"])[1:] / len(ages)
    assert len(shares) == 16 and shares.max() < 2 / 16


def test_the_test_file_has_few_unknown_values(data):
    preprocessing = Preprocessing.fit(data.train, data.schema)
    encoded = preprocessing.encode(data.test)
    for column in preprocessing.columns:
        if column.kind == "categorical":
            assert np.mean(encoded[column.field] == 1) < 0.001


def test_few_labels_of_one_task_and_all_of_the_others(data):
    few = census_income({"income": 2_000})
    one, again, other = (training_table({"income": 100}, seed, limit=5_000) for seed in (0, 0, 1))
    kept = ~np.isnan(labels(few.train, few.schema)["income"])
    assert kept.sum() == 2_000 and one.equals(again) and not one.equals(other)
    assert few.train.drop(["income_50k"]).equals(data.train.drop(["income_50k"]))
    full = labels(data.train, data.schema)["income"]
    np.testing.assert_array_equal(labels(few.train, few.schema)["income"][kept], full[kept])
    assert full[kept].mean() == pytest.approx(full.mean(), abs=4 * np.sqrt(0.062 * 0.938 / 2_000))
    assert few.test.equals(data.test) and few.schema == data.schema
    fewer = ~np.isnan(labels(training_table({"income": 500}), data.schema)["income"])
    assert fewer.sum() == 500 and not (fewer & ~kept).any()


@pytest.mark.parametrize(
    ("labelled_rows", "said"),
    [
        ({"incom": 10}, 'Did you mean "income"'),
        ({"income": 0}, "1 or more; received 0"),
        ({"income": 300_000}, 'asks for 300,000 rows with a label in column "income_50k", and 199,523 have one'),
    ],
)
def test_few_labels_that_cannot_be(labelled_rows, said):
    with pytest.raises(UserError, match=said):
        training_table(labelled_rows)
