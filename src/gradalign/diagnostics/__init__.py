"""Diagnostics: does the alignment reach the shared tensor, and what is worth watching while it trains."""

from gradalign.diagnostics.second_order import SecondOrderReport, TaskNorms, check_second_order, norms_at_shared

__all__ = ["SecondOrderReport", "TaskNorms", "check_second_order", "norms_at_shared"]
