"""The case `start-up`: seconds of fresh processes."""

from __future__ import annotations

from gradalign.benchmarks.children import run_child, run_process
from gradalign.errors import UserError

__all__ = ["START_UP_ROWS", "start_up_seconds"]

START_UP_ROWS = {
    "help": "gradalign --help",
    "plain-from-start": "first step of keras.Model, from the start of the process",
    "plain-from-fit": "first step of keras.Model, from the call of fit",
    "aligned-from-start": "first step of MultiTaskModel, from the start of the process",
    "aligned-from-fit": "first step of MultiTaskModel, from the call of fit",
}

# The command line as its script runs it; it ends by raising SystemExit.
_HELP = """
import sys
from gradalign.cli import main
try:
    main(["--help"])
finally:
    print()
    print('{"tensorflow": %s}' % str("tensorflow" in sys.modules).lower())
"""


def start_up_seconds(case: str, small: bool) -> list[float]:
    """Measure each of `START_UP_ROWS` once.

    Raises:
        UserError: the help imports TensorFlow.
    """
    shown = run_process("-c", _HELP)
    if shown.result["tensorflow"]:
        raise UserError("gradalign --help imports TensorFlow; it has to answer without.")
    found = [shown.ended - shown.started]
    for row in ("plain", "aligned"):
        child = run_child("first-step", case, row, "small" if small else "full")
        stepped = child.result["stepped"]
        found += [stepped - child.started, stepped - child.result["called"]]
    return found
