"""A file that is read once in parts teaches what the whole table teaches, and is refused with the same words."""

import numpy as np
import pyarrow as pa
import pytest

from gradalign.data import Preprocessing, Summary, TaskSpec, infer_schema
from gradalign.errors import UserError

ROWS = 600
TASKS = {"buy": TaskSpec("bought", (1,), where="clicked == 1"), "like": TaskSpec("liked", ("yes", "very"))}
FEATURES = {
    "drop": ["dropped"],
    "numeric": {"named": {"buckets": 4}, "weight": {"transform": "project"}, "height": {"transform": "project"}},
    "categorical": {"floats": {"min_count": 1}, "zip": {"max_size": 5}},
}


def table():
    draw = np.random.default_rng(0)

    def gaps(values, kind=None):
        return pa.array([None if draw.random() < 0.1 else v for v in values], kind)

    return pa.table(
        {
            "city": pa.array(draw.choice(["Oslo", "Rome", "", "Lima"], ROWS)).dictionary_encode(),
            "named": gaps(draw.integers(0, 50, ROWS).tolist()),
            "codes": gaps(draw.integers(0, 60, ROWS).tolist(), pa.int32()),
            "many": draw.integers(0, 10_000, ROWS),
            "user_id": draw.integers(0, 500, ROWS),
            "zip": gaps([f"{z:02}" for z in draw.integers(0, 30, ROWS)]),
            "price": gaps([float("nan") if p < 0 else p for p in draw.normal(1, 1, ROWS)], pa.float32()),
            "weight": gaps(draw.normal(size=ROWS).tolist()),
            "height": draw.normal(size=ROWS),
            "floats": gaps(draw.integers(0, 9, ROWS).astype(float).tolist()),
            "flag": gaps((draw.random(ROWS) < 0.5).tolist()),
            "tags": gaps([draw.choice(list("abcde"), draw.integers(0, 4)).tolist() for _ in range(ROWS)]),
            "fractions": [[0.5]] * ROWS,
            "when": pa.array([0] * ROWS, pa.timestamp("s")),
            "nothing": pa.nulls(ROWS, pa.float64()),
            "untyped": pa.nulls(ROWS),
            "dropped": ["x"] * ROWS,
            "clicked": gaps(draw.integers(0, 2, ROWS).tolist()),
            "bought": draw.integers(0, 2, ROWS),
            "liked": gaps(draw.choice(["no", "yes", "very"], ROWS).tolist()),
        }
    )


def parts_of(rows, size):
    """Drawn once, as a file is read."""
    return iter([rows.slice(first, size) for first in range(0, rows.num_rows, size)])


@pytest.mark.parametrize("size", [40, ROWS])
def test_it_teaches_what_the_table_teaches(size):
    rows = table()
    summary = Summary(parts_of(rows, size), rows.schema, TASKS, FEATURES)
    schema, found = infer_schema(rows, TASKS, FEATURES), infer_schema(summary, TASKS, FEATURES)
    assert found == schema and found.reasons == schema.reasons
    assert set(found.drop) == {"dropped", "fractions", "when", "nothing", "untyped"}
    wanted, learnt = Preprocessing.fit(rows, schema).columns, Preprocessing.fit(summary, found).columns
    for one, other in zip(wanted, learnt, strict=True):
        if one.kind == "project":  # means are summed in another order
            numbers = {k: v for k, v in one.learnt.items() if k != "missing"}
            assert {k: other.learnt[k] for k in numbers} == pytest.approx(numbers, rel=1e-12)
            assert other.learnt["missing"] == one.learnt["missing"]
        else:
            assert one == other
    assert {c.learnt["missing"] for c in learnt if c.kind == "project"} == {"weight_is_missing", None}


WRONG = {
    "no label column": ({"t": TaskSpec("bougt")}, {}, 'needs the label column "bougt"'),
    "no condition column": ({"t": TaskSpec("bought", where="clickd == 1")}, {}, "`where` names"),
    "a positive that never occurs": ({"t": TaskSpec("bought", 7)}, {}, "7 never occurs"),
    "a condition that never holds": ({"t": TaskSpec("bought", where="clicked == 5")}, {}, '"5" of `where`'),
    "one value": ({"t": TaskSpec("dropped", "x")}, {}, "one value only"),
    "a label of lists": ({"t": TaskSpec("tags")}, {}, "cannot be a label"),
    "an empty label": ({"t": TaskSpec("untyped")}, {}, "is empty"),
    "no such feature": (TASKS, {"numeric": ["agee"]}, '"agee"'),
    "numbers that are text": (TASKS, {"numeric": ["zip"]}, "cannot be numeric"),
    "fractions as codes": (TASKS, {"categorical": ["height"]}, "holds fractions"),
    "an unknown kind": (TASKS, {"numbers": []}, 'has no key "numbers"'),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_with_the_words_for_a_table(case):
    tasks, features, words = WRONG[case]
    rows = table()
    with pytest.raises(UserError) as of_table:
        infer_schema(rows, tasks, features, "rows.parquet")
    with pytest.raises(UserError) as of_summary:
        infer_schema(
            Summary(parts_of(rows, 200), rows.schema, tasks, features, "rows.parquet"), tasks, features, "rows.parquet"
        )
    assert str(of_summary.value) == str(of_table.value) and words in str(of_table.value)
