"""What discriminator and model minimise in an adversarial alignment; one file an objective, with its paper.

>>> objective_named("confusion").reverses
False
"""

from __future__ import annotations

from typing import Any

from gradalign.alignment.objectives.base import Objective
from gradalign.alignment.objectives.confusion import Confusion
from gradalign.alignment.objectives.least_squares import LeastSquares
from gradalign.alignment.objectives.non_saturating import NonSaturating
from gradalign.alignment.objectives.reversal import Reversal
from gradalign.alignment.objectives.wasserstein import Wasserstein
from gradalign.errors import UserError, nearest

__all__ = [
    "OBJECTIVES",
    "Confusion",
    "LeastSquares",
    "NonSaturating",
    "Objective",
    "Reversal",
    "Wasserstein",
    "objective_named",
]

OBJECTIVES: dict[str, type[Objective]] = {
    "reversal": Reversal,
    "non_saturating": NonSaturating,
    "confusion": Confusion,
    "least_squares": LeastSquares,
    "wasserstein": Wasserstein,
}


def objective_named(objective: Any) -> Objective:
    """Return the objective of that name, or `objective` itself where it is one.

    Raises:
        UserError: for anything else.
    """
    if isinstance(objective, Objective):
        return objective
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise UserError(
            f"objective is one of {', '.join(map(repr, OBJECTIVES))}, or an Objective; received {objective!r}."
            f"{nearest(str(objective), OBJECTIVES)}"
        )
    return OBJECTIVES[objective]()
