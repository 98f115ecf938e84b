"""Diagnostics: does the alignment reach the shared tensor, and what is worth keeping while it trains."""

from gradalign.diagnostics.callbacks import BestCheckpoint
from gradalign.diagnostics.discriminator_checks import LabelLeak
from gradalign.diagnostics.report import SecondOrderReport, TaskNorms
from gradalign.diagnostics.second_order import check_second_order, norms_at_shared

__all__ = ["BestCheckpoint", "LabelLeak", "SecondOrderReport", "TaskNorms", "check_second_order", "norms_at_shared"]
