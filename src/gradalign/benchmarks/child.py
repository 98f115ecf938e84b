"""What runs in a process of its own: `python -m gradalign.benchmarks.child memory|first-step CASE ROW full|small`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gradalign.benchmarks.cases import CASES, Case, smaller

__all__ = ["first_step", "memory"]


def memory(case: Case, row: str) -> dict[str, int]:
    """Build a row, run a few of its steps, and return the peak of this process's memory in bytes."""
    from gradalign.benchmarks.machine import prepare_process
    from gradalign.benchmarks.peak_memory import STEPS
    from gradalign.benchmarks.registry import problem_for, rows_of
    from gradalign.training.peak_memory import peak_resident_set

    kind = rows_of(case)[row]
    prepare_process()  # threads as where steps are timed
    if row.startswith("pytorch"):
        import gradalign.benchmarks.pytorch_rows  # noqa: F401 - counted among the imports
    before = peak_resident_set()
    built = kind.make(problem_for(case))
    built.warm_up()
    for _ in range(STEPS - 1):
        built.step()
    after = peak_resident_set()
    return {"whole": after, "over_imports": after - before}


def first_step(case: Case, row: str) -> dict[str, float]:
    """Call `fit` for one step and return when it was called and when the step had ended, as `time.time()`."""
    import keras

    from gradalign.benchmarks.keras_rows import aligned_model, plain_model
    from gradalign.benchmarks.problem import problem_of

    ended: list[float] = []
    problem = problem_of(case)
    model: Any = aligned_model(problem) if row == "aligned" else plain_model(problem)
    data = problem.dataset()
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: ended.append(time.time()))
    called = time.time()
    model.fit(data, steps_per_epoch=1, shuffle=False, verbose=0, callbacks=[note])
    return {"called": called, "stepped": ended[0]}


def _main() -> None:
    function, name, row, size = sys.argv[1:]
    case = CASES[name] if size == "full" else smaller(CASES[name])
    found = {"memory": memory, "first-step": first_step}[function](case, row)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main()
