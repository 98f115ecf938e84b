"""When an alignment can do no good: what a look of `GradientMonitor` says against it."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping

from gradalign.errors import UserError

__all__ = ["Trouble", "TroubleLimits"]


@dataclasses.dataclass(frozen=True)
class Trouble:
    """A reason, "pinned", "chance" or "share", and the sentence, without its end, that says so."""

    reason: str
    said: str


@dataclasses.dataclass(frozen=True)
class TroubleLimits:
    """From where on it is trouble; the arguments are those of `AdversaryGuard`, None for what does not count.

    Raises:
        UserError: for a value out of range.

    Example:
        >>> limits = TroubleLimits(ceiling=0.98, chance_margin=0.02, most_share=0.5)
        >>> look = {"a_discriminator_accuracy": 1.0, "b_discriminator_accuracy": 0.98,
        ...         "discriminator_label_aware_chance": 0.6, "second_to_first_order_ratio": 3.0}
        >>> limits.trouble(look, strength=0.1).reason
        'pinned'
        >>> limits.share(look, strength=1.0)
        0.75
    """

    ceiling: float | None
    chance_margin: float | None
    most_share: float | None

    def __post_init__(self) -> None:
        _check("ceiling", self.ceiling, lambda v: 0.0 < v <= 1.0, "an accuracy above 0, up to 1, or None")
        _check("chance_margin", self.chance_margin, lambda v: 0.0 <= v < 1.0, "0 or more and below 1, or None")
        _check("most_share", self.most_share, lambda v: 0.0 < v < 1.0, "between 0 and 1, or None")

    def trouble(self, look: Mapping[str, float], strength: float) -> Trouble | None:
        """Return what is wrong in a look at this strength; `None` for nothing. A figure that is NaN is no trouble."""
        accuracy = mean_accuracy(look)
        if accuracy is not None:
            chance = look["discriminator_label_aware_chance"]
            if self.ceiling is not None and accuracy >= self.ceiling:
                return Trouble("pinned", f"The discriminator named {accuracy:.1%} of the gradients right")
            if self.chance_margin is not None and accuracy <= chance + self.chance_margin:
                said = f"{accuracy:.1%} of the gradients right, where labels alone give {chance:.1%},"
                return Trouble("chance", f"The discriminator named {said}")
        if self.allows(look, strength):
            return None
        share = self.share(look, strength)
        return Trouble("share", f"The alignment had {share:.1%} of the gradient at the shared tensor")

    def allows(self, look: Mapping[str, float], strength: float) -> bool:
        """Whether the alignment's share is small enough at this strength."""
        return self.most_share is None or not self.share(look, strength) > self.most_share

    def share(self, look: Mapping[str, float], strength: float) -> float:
        """Return the alignment's share of the gradient at the shared tensor, at this strength."""
        ratio = strength * look["second_to_first_order_ratio"]
        return ratio / (1.0 + ratio)


def mean_accuracy(look: Mapping[str, float]) -> float | None:
    """Return the mean over tasks of the discriminator's accuracy in a look; `None` where it has none."""
    found = [v for name, v in look.items() if name.endswith("_discriminator_accuracy") and not math.isnan(v)]
    return sum(found) / len(found) if found else None


def _check(name: str, value: object, fits: Callable[[float], bool], wanted: str) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if value is not None and not (is_number and fits(float(value))):  # type: ignore[arg-type]
        raise UserError(f"{name} is {wanted}; received {value!r}.")
