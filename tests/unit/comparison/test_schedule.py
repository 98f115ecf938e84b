"""Jobs run some at a time, never twice, and one that fails ends the others."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradalign.comparison.job import Job, run_job
from gradalign.comparison.methods import methods_named
from gradalign.comparison.plan import Plan
from gradalign.comparison.schedule import Schedule
from gradalign.errors import UserError
from tests.unit.comparison.fakes import Fake, small_config


@pytest.fixture
def jobs(tmp_path):
    config = small_config()
    methods = tuple(methods_named("single,mmd", config))
    plan = Plan(config, methods, 2)
    return [run_job(plan, tmp_path, m, m.config(config), seed) for seed in range(2) for m in methods]


def _schedule(fake, jobs, at_once):
    said = io.StringIO()
    return Schedule(len(jobs), at_once, Console(file=said, width=200), fake), said


def test_finished_jobs_are_left_out_and_no_more_run_at_once_than_asked_for(jobs):
    first = Fake()
    _schedule(first, jobs[:2], 2)[0].run(jobs[:2])
    fake = Fake()
    schedule, said = _schedule(fake, jobs, 3)
    with schedule:
        schedule.run(jobs)
    assert first.started == ["none, seed 0", "single, seed 0"]
    assert fake.started == ["mmd, seed 0", "none, seed 1", "single, seed 1", "mmd, seed 1"]
    assert fake.most == 3 and all(job.is_done for job in jobs)
    lines = said.getvalue().splitlines()
    assert len(lines) == 4 and lines[0].startswith("3/6  mmd, seed 0: 0 s, about ")
    assert lines[-1] == "6/6  mmd, seed 1: 0 s"


@pytest.mark.parametrize(
    ("code", "said", "shown"),
    [
        (
            2,
            "Traceback\nError: There is no file rows.parquet.\n\n",
            "seed 0 failed: There is no file rows.parquet. All",
        ),
        (1, "", "seed 0 failed: it said nothing. All"),
        (-9, "half a line", "seed 0 failed: it was ended by SIGKILL, perhaps for want of memory. All"),
    ],
)
def test_a_job_that_fails_is_named_with_its_last_line_and_ends_the_others(jobs, code, said, shown):
    fake = Fake(fail={"mmd, seed 0": (code, said)}, endless=("none, seed 1",))
    schedule, _ = _schedule(fake, jobs, 2)
    with pytest.raises(UserError) as error:
        schedule.run(jobs)
    assert f"The run mmd, {shown} that it said is in " in str(error.value) and "said.log" in str(error.value)
    assert [job.is_done for job in jobs] == [True, True, False, False, False, False]
    assert fake.killed == ["none, seed 1"]


def test_a_job_that_says_it_ended_well_but_left_nothing_has_failed(jobs):
    fake = Fake(fail={"none, seed 0": (0, "done")})
    with pytest.raises(UserError, match="none, seed 0 failed"):
        _schedule(fake, jobs, 1)[0].run(jobs)


def test_a_job_is_read_back_from_its_line(jobs):
    for job in jobs:
        assert Job.from_json(job.to_json()) == job and "\n" not in job.to_json()
