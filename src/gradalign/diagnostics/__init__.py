"""Diagnostics: does the alignment reach the shared tensor, does it work, and what is worth keeping while it trains."""

from gradalign.diagnostics.adversary_guard import AdversaryGuard
from gradalign.diagnostics.callbacks import BestCheckpoint
from gradalign.diagnostics.discriminator_checks import LabelLeak
from gradalign.diagnostics.gradient_monitor import GradientMonitor
from gradalign.diagnostics.gradient_probe import probe
from gradalign.diagnostics.probe_report import Distance, ProbeReport
from gradalign.diagnostics.report import SecondOrderReport, TaskNorms
from gradalign.diagnostics.second_order import check_second_order, norms_at_shared

__all__ = [
    "AdversaryGuard",
    "BestCheckpoint",
    "Distance",
    "GradientMonitor",
    "LabelLeak",
    "ProbeReport",
    "SecondOrderReport",
    "TaskNorms",
    "check_second_order",
    "norms_at_shared",
    "probe",
]
