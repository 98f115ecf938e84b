"""Callbacks for `MultiTaskModel.fit`, where users look for them.

>>> from gradalign.callbacks import BestCheckpoint
>>> BestCheckpoint("best.keras", patience=3).patience
3
"""

from gradalign.diagnostics.callbacks import BestCheckpoint

__all__ = ["BestCheckpoint"]
