"""`gradalign probe`: a table, a verdict, and two files in the run folder."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq

from tests.integration.conftest import invoke, shop_table


def test_a_run_is_probed_and_its_figures_are_written(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "run")
    done = invoke("probe", run)
    assert done.exit_code == 0, done.output
    found = json.loads((run / "probe.json").read_text())
    for words in (
        "chance, blind          0.5000",
        "label-aware",
        f"{found['accuracy']:.4f}",
        "buy",
        "like",
        "Wasserstein",
    ):
        assert words in done.stdout
    assert done.stdout.splitlines()[-2] == found["verdict"]
    assert found["normalize"] == "batch" and found["rows"]["test"] == 45  # of the test part's 90 rows, all with "buy"
    assert "first principal component" in (run / "probe.svg").read_text("utf-8")
    assert {path.name for path in run.iterdir()} - {path.name for path in trained.run.iterdir()} == {
        "probe.json",
        "probe.svg",
    }


def test_another_file_and_what_it_lacks(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "run")
    rows = shop_table(200, 5)
    pq.write_table(rows, tmp_path / "new.parquet")
    done = invoke("probe", run, "--data", tmp_path / "new.parquet", "--normalize", "l2", "--rows", 120)
    assert done.exit_code == 0 and 'normalize="l2"' in done.stdout and "on 60 test rows" in done.stdout
    before = (run / "probe.json").read_bytes()
    unlabelled = rows.set_column(rows.column_names.index("liked"), "liked", pa.nulls(200, pa.string()))
    pq.write_table(unlabelled, tmp_path / "new.parquet")
    done = invoke("probe", run, "--data", tmp_path / "new.parquet")
    assert (
        done.exit_code == 2 and 'Error: Task "like" has 0 gradients' in done.stderr and "give more rows" in done.stderr
    )
    assert (run / "probe.json").read_bytes() == before
