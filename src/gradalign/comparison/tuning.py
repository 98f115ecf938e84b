"""What is chosen on the validation part before methods are compared: loss weights by a grid, or all by trials.

Without trials, the method `weights` takes the best of a small grid of loss weights, and nothing else is tuned. With
`--trials N` every method is given N trials by Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS
2011), of which the first is the config as it stands. The value of a trial is the mean over tasks of the validation AUC,
of one run with a seed that is not among those that are compared.

Trials are asked for in rounds of a fixed size, and the sampler has a fixed seed, so that neither the number of
processes nor an interruption changes what is tried: a study is gone through again from its start, and finished trials
are read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradalign.comparison.job import MEASURED, Job, trial_job
from gradalign.comparison.methods import WEIGHTS, Method
from gradalign.comparison.plan import Plan
from gradalign.errors import UserError
from gradalign.training.config import Config
from gradalign.training.config_file import load_config
from gradalign.training.run_folder import CONFIG

__all__ = ["GRID", "Trial", "best", "budget_in_words", "loss_weight_grid", "number_of_trials", "search_space", "tune"]

GRID = (3.0, 10.0)  # what each task in turn weighs beside the others
ROUND = 4  # trials that are asked for before the first of them is told
_RANGE = 10.0  # a number is searched for from a tenth to ten times what the config has
_WEIGHT = 0.1  # around which an alignment's weight is searched for where the config has 0

Settings = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was tried: {dotted key: value} on top of a method, and the mean validation AUC that came of it."""

    method: str
    number: int
    settings: Settings
    value: float


def loss_weight_grid(config: Config) -> list[Settings]:
    """Return the grid of `weights`: all tasks as configured, then each in turn 3 and 10 times that beside the others.

    The weights' sum stays what it is, so that the loss keeps its scale.

    >>> from gradalign.training.config_file import load_config
    >>> for settings in loss_weight_grid(load_config("synthetic"))[:2]:
    ...     print(settings)
    {'tasks.sparse.loss_weight': 1.0, 'tasks.dense.loss_weight': 1.0}
    {'tasks.sparse.loss_weight': 1.5, 'tasks.dense.loss_weight': 0.5}
    """
    configured = {task: spec.loss_weight for task, spec in config.tasks.items()}
    grid = [configured]
    for task in configured:
        for times in GRID:
            raised = {**configured, task: times * configured[task]}
            scale = sum(configured.values()) / (sum(raised.values()) or 1.0)
            grid.append({name: scale * weight for name, weight in raised.items()})
    return [{f"tasks.{task}.loss_weight": weight for task, weight in weights.items()} for weights in grid]


def search_space(method: Method, config: Config) -> dict[str, tuple[float, float]]:
    """Return {dotted key: (low, high)}, searched on a logarithmic scale, around what the method's config has.

    The learning rate of every method; an alignment's weight; of `weights` each task's loss weight but the first's,
    since their scale changes nothing under Adam.

    >>> from gradalign.training.config_file import load_config
    >>> config = load_config("synthetic")
    >>> search_space(Method("cosine", {"alignment": {"method": "cosine"}}), config)
    {'training.learning_rate': (0.0002, 0.02), 'alignment.weight': (0.01, 1.0)}
    """
    own = method.config(config)
    centres = {"training.learning_rate": own.training.learning_rate}
    if own.alignment.method != "none":
        centres["alignment.weight"] = own.alignment.weight or _WEIGHT
    if method.name == WEIGHTS:
        for task, spec in list(own.tasks.items())[1:]:
            centres[f"tasks.{task}.loss_weight"] = spec.loss_weight or 1.0
    return {key: (centre / _RANGE, centre * _RANGE) for key, centre in centres.items()}


def number_of_trials(plan: Plan) -> int:
    """Return how many jobs tuning has."""
    if plan.trials:
        return plan.trials * len(plan.methods)
    return sum(len(loss_weight_grid(plan.config)) for method in plan.methods if method.name == WEIGHTS)


def budget_in_words(plan: Plan) -> str:
    """Say what was tuned, and how much."""
    if plan.trials:
        searched = [f"{method.name}: {', '.join(search_space(method, plan.config))}" for method in plan.methods]
        return (
            f"Every method was given {plan.trials} trials, of which the first is the config as it stands; chosen was "
            "the highest mean validation AUC over tasks, of one run with a seed that is not compared. Searched for, "
            f"each from a tenth to ten times the config's value: {'; '.join(searched)}."
        )
    if any(method.name == WEIGHTS for method in plan.methods):
        times = " and ".join(f"{times:g}" for times in GRID)
        return (
            f"No method was tuned but {WEIGHTS}, whose loss weights are the best of "
            f"{len(loss_weight_grid(plan.config))} by mean validation AUC over tasks, of one run with a seed that is "
            f"not compared: as configured, and each task in turn {times} times as much beside the others."
        )
    return "No method was tuned: each has the config's learning rate, and its alignment the config's weight."


def tune(plan: Plan, folder: Path, run: Callable[[Sequence[Job]], None]) -> list[Trial]:
    """Run what is to be tuned, and return all trials, in the order of methods and numbers.

    Args:
        plan: of the comparison.
        folder: of the comparison.
        run: runs jobs, those that are not done.

    Raises:
        UserError: a run failed, the validation part cannot tell models apart, or a trial in the folder is another one.
    """
    trials: list[Trial] = []
    if plan.trials:
        studies = [_Study(plan, method) for method in plan.methods]
        for first in range(0, plan.trials, ROUND):
            numbers = range(first, min(first + ROUND, plan.trials))
            asked = [(study, number, study.ask()) for study in studies for number in numbers]
            jobs = [_job(plan, folder, study.method, number, settings) for study, number, settings in asked]
            run(jobs)
            for (study, number, settings), job in zip(asked, jobs, strict=True):
                found = Trial(study.method.name, number, settings, _value(job))
                study.tell(found)
                trials.append(found)
    else:
        for method in plan.methods:
            if method.name == WEIGHTS:
                grid = loss_weight_grid(plan.config)
                jobs = [_job(plan, folder, method, number, settings) for number, settings in enumerate(grid)]
                run(jobs)
                for number, job in enumerate(jobs):
                    trials.append(Trial(method.name, number, grid[number], _value(job)))
    order = [method.name for method in plan.methods]
    return sorted(trials, key=lambda trial: (order.index(trial.method), trial.number))


def best(trials: Sequence[Trial], method: Method) -> Settings:
    """Return the settings of a method's best trial, the first of equal ones; nothing where it was not tuned."""
    own = [trial for trial in trials if trial.method == method.name]
    return max(own, key=lambda trial: trial.value).settings if own else {}


class _Study:
    """A method's study: what to try next, given what came of the trials before."""

    def __init__(self, plan: Plan, method: Method) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.method = method
        self._space: dict[str, optuna.distributions.BaseDistribution] = {
            key: optuna.distributions.FloatDistribution(low, high, log=True)
            for key, (low, high) in search_space(method, plan.config).items()
        }
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        self._study.enqueue_trial(_as_configured(method.config(plan.config), self._space))
        self._asked: list[Any] = []

    def ask(self) -> Settings:
        trial = self._study.ask(self._space)
        self._asked.append(trial)
        return dict(trial.params)

    def tell(self, found: Trial) -> None:
        self._study.tell(self._asked[found.number], found.value)


def _as_configured(config: Config, keys: Mapping[str, Any]) -> Settings:
    """What the config has at the keys that are searched for; where it has 0, the middle of the range."""
    found: Settings = {}
    for key in keys:
        value: Any = config.model_dump()
        for name in key.split("."):
            value = value[name]
        found[key] = float(value) or (_WEIGHT if key == "alignment.weight" else 1.0)
    return found


def _job(plan: Plan, folder: Path, method: Method, number: int, settings: Settings) -> Job:
    job = trial_job(plan, folder, method, method.config(plan.config, settings), number)
    for run, config in job.runs.items() if job.is_done else ():
        there = load_config(run / CONFIG)
        if any(_at(there, key) != _at(config, key) for key in settings):
            raise UserError(
                f'"{run}" holds a trial of other settings than {json.dumps(settings)}: another version of Optuna drew '
                "them; choose another --out."
            )
    return job


def _at(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        if isinstance(value, Mapping):
            if name not in value:  # a model of one task knows no other
                return None
            value = value[name]
        else:
            value = getattr(value, name)
    return value


def _value(job: Job) -> float:
    """The mean validation AUC of a finished trial, over its tasks."""
    aucs: list[float] = []
    for run in job.runs:
        measured = json.loads((run / MEASURED).read_text("utf-8"))
        for task, metrics in measured["tasks"].items():
            if metrics["auc"] is None:
                raise UserError(
                    f'The validation part has one class of task "{task}" only, so nothing can be chosen by it; give '
                    "more validation rows."
                )
            aucs.append(metrics["auc"])
    return sum(aucs) / len(aucs)
