"""A job, which is what one process does: the runs of one method and seed, or of one trial."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from gradalign.comparison.methods import Method
from gradalign.comparison.plan import TUNING_SEED, Plan
from gradalign.training.config import Config, validate
from gradalign.training.run_folder import is_run

__all__ = ["COST", "MEASURED", "Job", "run_job", "trial_job"]

COST, MEASURED = "cost.json", "measured.json"


@dataclasses.dataclass(frozen=True)
class Job:
    """Runs that one process trains and measures, one after another.

    Args:
        name: what it is called in messages.
        runs: run folder -> config; several where each task has its own model.
        part: that is measured: "test", or "validation" where methods are tuned.
        probe: how the probe treats gradients, the same for all methods: {"normalize", "sign_free"}; None for no probe.
    """

    name: str
    runs: dict[Path, Config]
    part: Literal["test", "validation"] = "test"
    probe: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        """Whether each run is finished and measured."""
        return all(is_run(folder) and (folder / MEASURED).is_file() for folder in self.runs)

    def to_json(self) -> str:
        """Return it in one line, as `from_json` takes it."""
        runs = {str(folder.absolute()): config.model_dump() for folder, config in self.runs.items()}
        return json.dumps({"name": self.name, "runs": runs, "part": self.part, "probe": self.probe})

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` wrote."""
        found: dict[str, Any] = json.loads(text)
        runs = {Path(folder): validate(config) for folder, config in found.pop("runs").items()}
        return cls(runs=runs, **found)


def run_job(plan: Plan, folder: Path, method: Method, config: Config, seed: int) -> Job:
    """Return the job of a method and seed; `config` is the method's, tuned where it was."""
    place = folder / "runs" / method.name / f"seed-{seed}"
    runs = {place / task: plan.seeded(of_run, seed) for task, of_run in method.runs(config).items()}
    alignment = plan.config.alignment
    probe = {"normalize": alignment.normalize, "sign_free": alignment.sign_free}
    return Job(f"{method.name}, seed {seed}", runs, probe=probe)


def trial_job(plan: Plan, folder: Path, method: Method, config: Config, trial: int) -> Job:
    """Return the job of a trial of a method's tuning, measured on the validation part."""
    place = folder / "tuning" / method.name / f"trial-{trial}"
    runs = {place / task: plan.seeded(of_run, TUNING_SEED) for task, of_run in method.runs(config).items()}
    return Job(f"{method.name}, trial {trial}", runs, part="validation")
