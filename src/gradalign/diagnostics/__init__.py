"""Diagnostics: does the alignment reach the shared tensor, and what is worth keeping while it trains."""

from gradalign.diagnostics.callbacks import BestCheckpoint
from gradalign.diagnostics.second_order import SecondOrderReport, TaskNorms, check_second_order, norms_at_shared

__all__ = ["BestCheckpoint", "SecondOrderReport", "TaskNorms", "check_second_order", "norms_at_shared"]
