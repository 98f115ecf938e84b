"""What is tried and chosen: the grid by hand, equal numbers of trials, and the same ones after an interruption."""

from __future__ import annotations

import json

import pytest

from gradalign.comparison.methods import methods_named
from gradalign.comparison.plan import TUNING_SEED, Plan
from gradalign.comparison.tuning import best, budget_in_words, loss_weight_grid, number_of_trials, search_space, tune
from gradalign.errors import UserError
from gradalign.training.config import Config
from tests.unit.comparison.fakes import finish, small_config

NAMES = "none,single,weights,adversarial"


class _Stop(Exception):
    """Stands for a kill."""


def _plan(trials, names=NAMES, *overrides):
    config = small_config(*overrides)
    return Plan(config, tuple(methods_named(names, config)), 2, trials)


def _runner(started, stop_after=None):
    def run(jobs):
        for job in jobs:
            if not job.is_done:
                if stop_after is not None and len(started) == stop_after:
                    raise _Stop
                started.append(job)
                finish(job)

    return run


def test_the_grid_raises_each_task_in_turn_and_keeps_the_sum():
    config = small_config("tasks.sparse.loss_weight=2")
    weights = [tuple(settings.values()) for settings in loss_weight_grid(config)]
    assert weights == [
        pytest.approx(expected)
        for expected in [(2, 1), (18 / 7, 3 / 7), (60 / 21, 3 / 21), (6 / 5, 9 / 5), (6 / 12, 30 / 12)]
    ]


def test_without_trials_only_weights_are_chosen_by_validation_auc(tmp_path):
    plan, started = _plan(0), []
    trials = tune(plan, tmp_path, _runner(started))
    assert len(trials) == number_of_trials(plan) == 5 and {trial.method for trial in trials} == {"weights"}
    assert all(job.part == "validation" and job.probe is None for job in started)
    assert {c.training.seed for job in started for c in job.runs.values()} == {TUNING_SEED}
    tried = [next(iter(job.runs.values())).tasks["sparse"].loss_weight for job in started]
    assert tried == [trial.settings["tasks.sparse.loss_weight"] for trial in trials]
    chosen = best(trials, plan.methods[2])
    assert chosen == trials[0].settings  # all are alike here, and the first is as configured
    assert best(trials, plan.methods[3]) == {}
    assert "one run with a seed that is not compared" in budget_in_words(plan) and "best of 5" in budget_in_words(plan)


def test_every_method_has_as_many_trials_and_the_first_is_the_config_as_it_stands(tmp_path):
    plan, started = _plan(6), []
    trials = tune(plan, tmp_path, _runner(started))
    by_method = {m.name: [trial for trial in trials if trial.method == m.name] for m in plan.methods}
    assert {name: len(own) for name, own in by_method.items()} == dict.fromkeys(by_method, 6)
    assert number_of_trials(plan) == len(started) == 24
    for method in plan.methods:
        first, *others = by_method[method.name]
        assert method.config(plan.config, first.settings) == method.config(plan.config)
        space = search_space(method, plan.config)
        for trial in others:
            assert trial.settings.keys() == space.keys()
            assert all(low <= trial.settings[key] <= high for key, (low, high) in space.items())
        assert best(trials, method) == max(by_method[method.name], key=lambda trial: trial.value).settings
    assert list(search_space(plan.methods[2], plan.config)) == ["training.learning_rate", "tasks.dense.loss_weight"]
    assert list(search_space(plan.methods[3], plan.config)) == ["training.learning_rate", "alignment.weight"]
    single = [job for job in started if job.name.startswith("single")]
    assert all(len(job.runs) == 2 for job in single)  # a trial of it trains every task's model
    assert "Every method was given 6 trials" in budget_in_words(plan)


def test_trials_go_on_after_an_interruption_as_if_there_had_been_none(tmp_path):
    plan, whole = _plan(6, "adversarial"), []
    undisturbed = tune(plan, tmp_path / "a", _runner(whole))
    first, second = [], []
    with pytest.raises(_Stop):
        tune(plan, tmp_path / "b", _runner(first, stop_after=9))
    assert tune(plan, tmp_path / "b", _runner(second)) == undisturbed
    assert len(first) == 9 and len(second) == 3
    again = []
    assert tune(plan, tmp_path / "b", _runner(again)) == undisturbed and not again


def test_a_trial_with_other_settings_in_the_folder_is_refused(tmp_path):
    tune(_plan(1, "adversarial"), tmp_path, _runner([]))
    other = _plan(1, "adversarial", "training.learning_rate=0.01")
    with pytest.raises(UserError, match=r"holds a trial of other settings.*choose another --out"):
        tune(other, tmp_path, _runner([]))


def test_a_validation_part_of_one_class_cannot_choose(tmp_path):
    def run(jobs):
        for job in jobs:
            finish(job, lambda folder, config, task: None)

    with pytest.raises(UserError, match='one class of task "sparse" only'):
        tune(_plan(0, "weights"), tmp_path, run)


def test_trials_need_a_validation_part():
    config = small_config().model_dump()
    config["data"] = {"train": "a.csv", "test": "b.csv"}
    without = Config.model_validate(config)
    with pytest.raises(UserError, match=r"--trials chooses by the validation part.*set data\.validation"):
        Plan(without, tuple(methods_named("cosine", without)), 1, trials=1)
    assert json.dumps(Plan(without, tuple(methods_named("cosine", without)), 1).asked())
