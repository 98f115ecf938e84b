"""Jobs that train nothing: they leave what a finished run leaves, with figures that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradalign.comparison.job import COST, MEASURED, Job
from gradalign.training.config import Config
from gradalign.training.config_file import dump_config, load_config
from gradalign.training.run_folder import CONFIG, METRICS

SMALL = ["rows=300", "validation_rows=80", "test_rows=80", "fields=3", "categories=4"]


def small_config(*overrides: str) -> Config:
    return load_config("synthetic", [*(f"data.synthetic.{setting}" for setting in SMALL), *overrides])


def auc_of(folder: Path, config: Config, task: str) -> float:
    """Depends on all that a run is made of."""
    rate, weight = config.training.learning_rate, config.alignment.weight * (config.alignment.method != "none")
    return 0.6 + 0.01 * (task == "dense") + 0.02 * weight - abs(rate - 0.003) + 0.001 * (config.training.seed % 7) ** 2


def finish(job: Job, value: Callable[[Path, Config, str], float] = auc_of) -> None:
    for folder, config in job.runs.items():
        folder.mkdir(parents=True)
        for name in ("history.csv", "model.keras", "preprocessing.json", "serving"):
            (folder / name).touch()
        (folder / CONFIG).write_text(dump_config(config))
        metrics = {"test": {}, "training": {"seconds": 2.5}, "alignment": {"discriminator_accuracy": None}}
        (folder / METRICS).write_text(json.dumps(metrics))
        (folder / COST).write_text(json.dumps({"memory_mb": 500.0, "warnings": ["Mind the gap."]}))
        tasks = {task: {"auc": value(folder, config, task), "log_loss": 0.5} for task in config.tasks}
        deciles = {task: [[0.1, 0.2], [0.5, 0.4]] for task in config.tasks}
        measured = {"tasks": tasks, "deciles": deciles, "probe_accuracy": 0.75, "warnings": []}
        (folder / MEASURED).write_text(json.dumps(measured))


class Fake:
    """Starts jobs that end when they are looked at for the second time; notes what was started and ended.

    Args:
        fail: the name of a job that fails, which leaves these lines.
        endless: names of jobs that never end.
        interrupt: so many jobs are started, then it is as if Ctrl-C were pressed.
    """

    def __init__(
        self, fail: dict[str, tuple[int, str]] | None = None, endless: Sequence[str] = (), interrupt: int | None = None
    ) -> None:
        self.fail, self.endless, self.interrupt = fail or {}, endless, interrupt
        self.started: list[str] = []
        self.killed: list[str] = []
        self.at_once = self.most = 0

    def __call__(self, job: Job) -> Any:
        if self.interrupt is not None and len(self.started) == self.interrupt:
            raise KeyboardInterrupt
        self.started.append(job.name)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        return _Running(self, job)


class _Running:
    def __init__(self, fake: Fake, job: Job) -> None:
        self.fake, self.job, self.looks = fake, job, 0
        self.log = next(iter(job.runs)).parent / "said.log"

    def poll(self) -> int | None:
        self.looks += 1
        if self.looks < 2 or self.job.name in self.fake.endless:
            return None
        self.fake.at_once -= 1
        if self.job.name in self.fake.fail:
            code, said = self.fake.fail[self.job.name]
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text(said)
            return code
        finish(self.job)
        return 0

    def kill(self) -> None:
        self.fake.killed.append(self.job.name)
