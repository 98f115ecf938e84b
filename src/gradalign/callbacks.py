"""Callbacks for `MultiTaskModel.fit`, where users look for them.

>>> from gradalign.callbacks import BestCheckpoint
>>> BestCheckpoint("best.keras", patience=3).patience
3
"""

from gradalign.diagnostics.adversary_guard import AdversaryGuard
from gradalign.diagnostics.callbacks import BestCheckpoint
from gradalign.diagnostics.gradient_monitor import GradientMonitor

__all__ = ["AdversaryGuard", "BestCheckpoint", "GradientMonitor"]
