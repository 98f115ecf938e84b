"""Synthetic data: what is promised of it holds exactly, by enumeration of all rows where that is possible."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from gradalign import UserError
from gradalign.data import Preprocessing, labels
from gradalign.datasets import synthetic
from gradalign.datasets.synthetic import _intercept
from gradalign.datasets.synthetic_logits import TaskLogits


def small(**arguments):
    return synthetic(
        **{"rows": 400, "validation_rows": 50, "test_rows": 300, "fields": 3, "categories": 5, **arguments}
    )


@pytest.mark.parametrize(
    ("tasks", "correlation", "interaction", "skew"),
    [(2, 0.8, 0.3, 0.5), (2, -0.6, 0.5, 1.0), (2, 1.0, 0.2, 0.0), (3, 0.35, 0.0, 2.0), (1, 0.5, 0.9, 0.5)],
)
def test_correlation_and_variance_are_exact_in_the_population(tasks, correlation, interaction, skew):
    sizes = (3, 4, 5)
    logits = TaskLogits(sizes, tasks, correlation, interaction, skew, np.random.RandomState(3))
    ids = np.array(list(itertools.product(*map(range, sizes))))  # every row that can be drawn
    chance = np.prod([(1.0 + ids[:, f]) ** -skew / sum((1.0 + np.arange(n)) ** -skew) for f, n in enumerate(sizes)], 0)
    assert chance.sum() == pytest.approx(1.0, abs=1e-12)
    z = logits(ids)
    wanted = np.full((tasks, tasks), correlation)
    np.fill_diagonal(wanted, 1.0)
    np.testing.assert_allclose(chance @ z, 0.0, atol=1e-12)
    np.testing.assert_allclose((chance[:, None] * z).T @ z, wanted, atol=1e-12)
    # Of the variance, what the fields explain one by one: the rest is the pairs'.
    single = 0.0
    for field, size in enumerate(sizes):
        of_category = [chance[ids[:, field] == c] for c in range(size)]
        means = [p @ z[ids[:, field] == c, 0] / p.sum() for c, p in enumerate(of_category)]
        single += sum(p.sum() * mean**2 for p, mean in zip(of_category, means, strict=True))
    assert single == pytest.approx(1.0 - interaction, abs=1e-12)


def test_frequencies_are_those_of_the_skew():
    ids = TaskLogits([4], 1, 0.5, 0.0, 1.0, np.random.RandomState(0)).draw(40_000, np.random.RandomState(1))
    wanted = np.array([12, 6, 4, 3]) / 25
    np.testing.assert_allclose(np.bincount(ids[:, 0]) / 40_000, wanted, atol=4 * 0.5 / 200)


def test_the_intercept_meets_the_rate_on_the_rows_it_is_solved_for():
    z = np.random.RandomState(0).standard_normal(1_000)
    for rate, noise in ((0.001, 0.7), (0.4, 3.0), (0.2, 1e-3), (0.9, 0.1)):
        b = _intercept(z, rate, noise)
        assert np.mean(1 / (1 + np.exp(-np.clip((z + b) / noise, -700, 700)))) == pytest.approx(rate, abs=1e-9)


@pytest.fixture(scope="module")
def large():
    start = time.process_time()
    data = synthetic(base_rates={"sparse": 0.05, "dense": 0.3}, users=500)
    return data, time.process_time() - start


def test_200_000_rows_take_about_a_second(large):
    data, seconds = large
    assert data.train.num_rows == 200_000 and seconds < 6  # 1.4 on this project's two cores


def test_base_rates_are_met_and_the_labels_follow_the_probabilities(large):
    data, _ = large
    for part in ("train", "validation", "test"):
        _, y = data.arrays(part)
        for task, rate in {"sparse": 0.05, "dense": 0.3}.items():
            p, has = data.probabilities[part][task], np.isfinite(y[task])
            assert p.mean() == pytest.approx(rate, abs=0.004), (part, task)
            sd = np.sqrt((p[has] * (1 - p[has])).sum())
            assert abs(y[task][has].sum() - p[has].sum()) < 4 * sd
            high = has & (p > np.quantile(p, 0.9))
            assert y[task][high].mean() == pytest.approx(p[high].mean(), abs=4 * 0.5 / np.sqrt(high.sum()))


def test_the_oracle_is_the_auc_of_the_true_probability_on_the_test_rows(large):
    data, _ = large
    _, y = data.arrays("test")
    for task, auc in data.oracle_auc.items():
        assert auc == pytest.approx(roc_auc_score(y[task], data.probabilities["test"][task]), abs=1e-12)
        assert 0.75 < auc < 0.9
    assert small(noise=3.0).oracle_auc["dense"] < small(noise=0.01).oracle_auc["dense"]
    assert small(test_rows=1).oracle_auc == {"sparse": None, "dense": None}


def test_labels_are_missing_where_the_share_says_and_nowhere_else(large):
    data, _ = large
    assert {t: int(np.isfinite(v).sum()) for t, v in data.arrays()[1].items()} == {"sparse": 5_000, "dense": 200_000}
    assert all(np.isfinite(v).all() for part in ("validation", "test") for v in data.arrays(part)[1].values())
    few, many = (np.isfinite(small(labelled_share={"a": share, "b": 1.0}).arrays()[1]["a"]) for share in (0.1, 0.3))
    assert (few.sum(), many.sum()) == (40, 120) and not (few & ~many).any()


def test_users_are_a_field_of_their_own(large):
    data, _ = large
    assert data.group == "user" and data.schema.columns[:2] == ("user", "field_0") and data.fields["user"].size == 500
    assert small().group is None
    assert data.arrays()[0]["user"].max() == 499


def test_one_seed_gives_one_data_set_and_the_parts_do_not_depend_on_one_another():
    one, again, other = small(seed=4), small(seed=4), small(seed=5)
    for part in ("train", "validation", "test"):
        assert getattr(one, part).equals(getattr(again, part))
        assert not getattr(one, part).equals(getattr(other, part))
    more = small(seed=4, rows=700)
    assert more.test.equals(one.test) and more.oracle_auc == one.oracle_auc
    ids = [np.stack(list(one.arrays(part)[0].values()), 1)[:50] for part in ("train", "validation", "test")]
    assert not any((a == b).all() for a, b in itertools.combinations(ids, 2))


def test_the_data_layer_takes_the_tables():
    data = small()
    x, y = data.arrays("train")
    encoded = Preprocessing.fit(data.train, data.schema).encode(data.test)
    assert list(encoded) == list(x) == ["field_0", "field_1", "field_2"]
    np.testing.assert_array_equal(labels(data.train, data.schema)["sparse"], y["sparse"])
    # One id for one category, whatever the numbers are.
    pairs = set(zip(encoded["field_1"].tolist(), data.arrays("test")[0]["field_1"].tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": 0}, "rows is a whole number, 1 or more; received 0"),
        ({"categories": 1}, "categories is a whole number, 2"),
        ({"users": True}, "users is a whole number"),
        ({"correlation": 1.5}, "correlation is from -1 to 1 for 2 tasks; received 1.5"),
        ({"correlation": -0.1, "labelled_share": {"a": 1.0}}, "correlation is from 0 to 1 for 1 task;"),
        ({"labelled_share": {"a": 0.0}}, 'labelled_share of task "a" is a share above 0'),
        ({"labelled_share": ["a"]}, "labelled_share is a mapping"),
        ({"base_rates": {"spars": 0.1}}, 'Did you mean "sparse"?'),
        ({"base_rates": 1}, "base_rates of task"),
        ({"noise": 0}, "noise is a number above 0; received 0"),
        ({"noise": float("nan")}, "noise is a number above 0; received nan"),
        ({"interaction": 1.0}, "interaction is a share"),
        ({"skew": "much"}, "skew is a number"),
        ({"fields": 1}, "Pairs of fields have room for 0 uncorrelated effects, and 3 are needed"),
    ],
)
def test_what_is_out_of_range_is_said(arguments, said):
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        small(**arguments)


def test_an_unknown_part_is_said():
    with pytest.raises(UserError, match='Did you mean "test"'):
        small().arrays("tset")
