import numpy as np
import pyarrow as pa
import pytest

from gradalign.data.learning import finite, quantile_edges, standardisation, vocabulary


def counts(values, edges):
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)


def test_a_vocabulary_is_ordered_by_count_then_value():
    values = pa.array(["c", "b", "b", "a", "a", None, "d", "d", "d"])
    assert vocabulary(values) == ["d", "a", "b", "c"]
    assert vocabulary(values, min_count=2) == ["d", "a", "b"]
    assert vocabulary(values, max_size=2) == ["d", "a"]
    assert vocabulary(values, min_count=4) == []
    assert vocabulary(pa.array([5, -1, 5, None])) == [5, -1]
    assert vocabulary(pa.array([], pa.string())) == []


def test_a_vocabulary_does_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 30, 300)
    assert vocabulary(pa.array(values)) == vocabulary(pa.array(rng.permutation(values)))


def test_few_values_get_a_bucket_each():
    assert quantile_edges(np.array([2.0, 0, 1, 1]), 16) == [0.5, 1.5]
    assert quantile_edges(np.array([7.0, 7.0]), 16) == []
    assert quantile_edges(np.array([]), 16) == []


def test_distinct_values_fill_buckets_evenly():
    values = np.random.default_rng(0).normal(size=1600)
    edges = quantile_edges(values, 16)
    assert len(edges) == 15
    assert counts(values, edges).tolist() == [100] * 16


def test_a_value_that_fills_most_rows_leaves_buckets_for_the_rest():
    """Plain quantiles of a column that is 95 % zeros are all 0."""
    values = np.concatenate([np.zeros(950), np.arange(1, 51)])
    edges = quantile_edges(values, 6)
    assert counts(values, edges).tolist() == [950, 10, 10, 10, 10, 10]
    middle = np.concatenate([np.arange(-25, 0), np.zeros(950), np.arange(1, 26)])
    assert counts(middle, quantile_edges(middle, 7)).tolist()[2:5].count(950) == 1


@pytest.mark.parametrize("seed", range(30))
def test_properties_of_edges(seed):
    rng = np.random.default_rng(seed)
    buckets = int(rng.integers(2, 20))
    spread = rng.choice([1, 5, 100, 1e6, 1e-9])
    values = [np.zeros, rng.standard_normal, rng.standard_exponential][seed % 3](int(rng.integers(1, 500))) * spread
    if seed % 2:
        values = np.round(values)
    values = np.concatenate([values, np.repeat(rng.normal(size=3) * spread, rng.integers(0, 200, 3))])
    edges = quantile_edges(values, buckets)
    distinct = len(np.unique(values))
    assert len(edges) < buckets
    assert np.all(np.diff(edges) > 0)
    assert np.all(np.isfinite(edges))
    assert np.all(counts(values, edges) > 0)  # no bucket that training never sees
    assert (len(edges) == 0) == (distinct == 1)
    if distinct <= buckets:
        assert len(edges) == distinct - 1


def test_many_heavy_values_do_not_exceed_the_buckets():
    values = np.repeat(np.arange(9), [10, 1, 10, 1, 10, 1, 10, 1, 10])
    edges = quantile_edges(values, 5)
    assert 0 < len(edges) < 5
    assert np.all(counts(values, edges) > 0)


def test_an_edge_between_neighbouring_floats_separates_them():
    low = 1.0
    high = np.nextafter(low, 2)
    [edge] = quantile_edges(np.array([low, high]), 4)
    assert counts(np.array([low, high]), [edge]).tolist() == [1, 1]


def test_edges_of_the_largest_floats_are_finite():
    big = np.finfo("float64").max
    assert quantile_edges(np.array([-big, big]), 2) == [0.0]


def test_finite_numbers():
    assert finite(pa.array([1, None], pa.int32())).tolist() == [1.0]
    assert finite(pa.array([1.5, float("nan"), float("inf"), None])).tolist() == [1.5]
    assert finite(pa.array([], pa.float64())).tolist() == []


def test_standardisation():
    assert standardisation(np.array([1.0, 3.0])) == {"mean": 2.0, "scale": 1.0, "low": 1.0, "high": 3.0}
    assert standardisation(np.array([5.0, 5.0]))["scale"] == 1.0
