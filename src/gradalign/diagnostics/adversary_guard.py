"""Damps the alignment while it can do no good: its discriminator saturated or at chance, or its gradient too large."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.alignment.arguments import is_count, share_below_one
from gradalign.diagnostics.alignment_trouble import Trouble, TroubleLimits
from gradalign.diagnostics.gradient_monitor import GradientMonitor
from gradalign.errors import GradAlignWarning, UserError

__all__ = ["AdversaryGuard"]


class AdversaryGuard(keras.callbacks.Callback):
    """Take the alignment's strength down while it is in trouble, step by step to a pause, and up again afterwards.

    Trouble is one of these, in `patience` looks in a row:

    - the discriminator is pinned: its accuracy is `ceiling` or more. A saturated cross-entropy hands back next to no
      gradient, and what comes is of the few rows that it has wrong;
    - it is at chance: its accuracy is at most `chance_margin` above what the labels alone give away, and to reverse a
      guess only moves the model about;
    - the alignment's share of the gradient at the shared tensor, `alignment_share`, is above `most_share`.

    Then `alignment.damping`, which multiplies the strength, is multiplied by `factor`, and is 0 where that is below
    `pause_below`. The discriminator learns on at full strength. After `recovery` looks in a row without trouble, in
    which the share would be small enough one step up too, damping goes up by that step, until it is 1.

    The guard goes by the looks of a `GradientMonitor` and not by the `discriminator_accuracy` of the training logs.
    That is a mean since the epoch began: in a long epoch it lags, in a short one it is of a few batches, and it knows
    neither chance nor share. A look is of the model as it is, on the same rows each time, and every epoch has one.

    Damping is a weight of the alignment: nothing is traced anew for it, and a saved model goes on with it. The logs get
    `alignment_damping`, the mean of what it was in the epoch's looks. The first time that the guard acts for a reason
    it says so, as a `GradAlignWarning`.

    Args:
        monitor: of the same `fit`, before the guard in the list of callbacks.
        ceiling: accuracy from which on the discriminator is pinned, above 0, up to 1; `None` does not look at it.
        chance_margin: accuracy above label-aware chance up to which it guesses, 0 or more; `None` does not look at it.
        most_share: largest share of the gradient, between 0 and 1; `None` does not look at it.
        patience: looks in a row with the same trouble before each step down.
        factor: what a step down multiplies damping by, from 0, which pauses at once, up to, but without, 1.
        pause_below: damping below this is 0, and the first step up from 0 leads to it; from 0 up to, but without, 1.
        recovery: looks in a row without trouble before each step up.

    Attributes:
        history: each change, `{"step": optimizer steps, "damping": the new one, "reason": "pinned", "chance", "share"
            or "recovery"}`, over several fits.

    Raises:
        UserError: for a wrong argument; in `fit`, where there is nothing to damp or to go by.

    Example:
        >>> data = np.ones((8, 3), "float32"), {"click": np.zeros(8), "buy": np.ones(8)}
        >>> monitor = GradientMonitor(data, every=100)
        >>> callbacks = [monitor, AdversaryGuard(monitor, patience=2)]  # for fit
        >>> callbacks[1].history
        []
    """

    def __init__(
        self,
        monitor: GradientMonitor,
        *,
        ceiling: float | None = 0.98,
        chance_margin: float | None = 0.02,
        most_share: float | None = 0.5,
        patience: int = 3,
        factor: float = 0.5,
        pause_below: float = 0.05,
        recovery: int = 3,
    ) -> None:
        super().__init__()
        if not isinstance(monitor, GradientMonitor):
            raise UserError(f"monitor is the GradientMonitor whose looks the guard goes by; received {monitor!r}.")
        for name, count in (("patience", patience), ("recovery", recovery)):
            if not is_count(count):
                raise UserError(f"{name} is a number of looks, 1 or more; received {count!r}.")
        self.monitor, self.limits = monitor, TroubleLimits(ceiling, chance_margin, most_share)
        self.patience, self.recovery = int(patience), int(recovery)
        self.factor, self.pause_below = share_below_one("factor", factor), share_below_one("pause_below", pause_below)
        self.history: list[dict[str, Any]] = []
        self._said: set[str] = set()
        self._in_epoch: list[float] = []
        self._start_counts()

    def _start_counts(self) -> None:
        self._seen, self._with, self._without, self._reason = len(self.monitor.history), 0, 0, ""

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that there is an alignment to watch over, and start the counts of looks."""
        alignment = getattr(self.model, "alignment", None)
        if alignment is None:
            raise UserError("AdversaryGuard damps an alignment, and this model has none.")
        if not alignment.has_weights and self.limits.most_share is None:
            raise UserError(
                f"{type(alignment).__name__} has no discriminator, and with most_share=None AdversaryGuard has nothing "
                "else to go by; give most_share."
            )
        self._start_counts()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the mean anew."""
        self._in_epoch = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Act on a look that the monitor took after this batch."""
        self._follow()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Act on a look at the end of the epoch, and add the mean damping of the epoch's looks to the logs."""
        self._follow()
        if not self._in_epoch:
            raise UserError(
                "AdversaryGuard goes by the looks of its GradientMonitor, which took none in this epoch: give fit both "
                "as callbacks, the monitor first."
            )
        if logs is not None:
            logs["alignment_damping"] = float(np.mean(self._in_epoch))

    def _follow(self) -> None:
        for look in self.monitor.history[self._seen :]:
            self._act(look)
        self._seen = len(self.monitor.history)

    def _act(self, look: dict[str, float]) -> None:
        alignment = self.model.alignment
        damping, undamped = float(tf.convert_to_tensor(alignment.damping)), float(alignment.scheduled_strength)
        self._in_epoch.append(damping)
        trouble = self.limits.trouble(look, undamped * damping)
        higher = self._higher(damping)
        can_go_up = trouble is None and self.limits.allows(look, undamped * higher)
        self._without = self._without + 1 if can_go_up else 0
        reason = "" if trouble is None else trouble.reason
        self._with = 0 if trouble is None else self._with + 1 if reason == self._reason else 1
        self._reason = reason
        if trouble is not None and self._with == self.patience:
            self._with = 0
            lower = damping * self.factor
            lower = lower if lower >= self.pause_below else 0.0
            if lower < damping:
                self._set(look, lower, reason)
                self._say(look, lower, trouble)
        elif self._without == self.recovery:
            self._without = 0
            if higher > damping:
                self._set(look, higher, "recovery")

    def _higher(self, damping: float) -> float:
        """Return the damping one step up."""
        if self.factor == 0.0 or damping == self.pause_below == 0.0:
            return 1.0
        return min(1.0, damping / self.factor if damping > 0.0 else self.pause_below)

    def _set(self, look: dict[str, float], damping: float, reason: str) -> None:
        self.model.alignment.damping.assign(damping)
        self.history.append({"step": int(look["step"]), "damping": damping, "reason": reason})

    def _say(self, look: dict[str, float], damping: float, trouble: Trouble) -> None:
        if trouble.reason in self._said:
            return
        self._said.add(trouble.reason)
        does = "pauses the alignment" if damping == 0.0 else f"takes the alignment's strength times {damping:.3g}"
        how_long = "in a look" if self.patience == 1 else f"in {self.patience} looks in a row"
        warnings.warn(
            f"{trouble.said} {how_long}, so AdversaryGuard {does} from step {int(look['step'])} on.",
            GradAlignWarning,
            stacklevel=2,
        )
