"""From a folder to its report.html."""

from __future__ import annotations

from pathlib import Path

from gradalign.errors import UserError
from gradalign.report.comparison_files import ComparisonFiles
from gradalign.report.comparison_page import comparison_page
from gradalign.report.files import write
from gradalign.report.run_files import RunFiles
from gradalign.report.run_page import run_page

__all__ = ["REPORT", "write_comparison_report", "write_report", "write_run_report"]

REPORT = "report.html"


def write_run_report(folder: str | Path, *, shown: str | Path | None = None) -> Path:
    """Write report.html into a run folder, in place of an older one, and return its path.

    The report holds the tasks' curves and test metrics, the discriminator against both chances, the cosines of the
    tasks' gradients, the gradients before and after training where a probe was run, cost, versions and configuration,
    and a verdict in words. What the run did not record is said.

    Args:
        folder: the run's.
        shown: the path by which commands in the report call the run; by default `folder`.

    Raises:
        UserError: a file is missing or damaged, or the report cannot be written.

    Example:
        >>> write_run_report("no/such/folder")
        Traceback (most recent call last):
        ...
        gradalign.errors.UserError: The report needs "no/such/folder/metrics.json", which is missing; restore it, or
        make the folder again.
    """
    folder = Path(folder)
    return write(folder / REPORT, run_page(RunFiles.read(folder), str(shown or folder)))


def write_comparison_report(folder: str | Path) -> Path:
    """Write report.html into the folder of a finished comparison, in place of an older one, and return its path.

    The report holds each method's metrics and paired differences to the plain sum, with intervals, calibration, the
    probes against both chances, validation curves, cost, tuning budget and configuration, and a verdict in words. The
    reports of its runs, which were written before they were probed, are written anew.

    Args:
        folder: the comparison's.

    Raises:
        UserError: the comparison is not finished, a file is damaged, or the report cannot be written.
    """
    folder = Path(folder)
    found = ComparisonFiles.read(folder)
    for run in found.runs:
        if (run.path / "metrics.json").exists():
            write_run_report(run.path)
    return write(folder / REPORT, comparison_page(found, str(folder)))


def write_report(path: str | Path) -> Path:
    """Write the report of a run or of a comparison, whichever `path` holds, and return its path.

    Raises:
        UserError: it holds neither, or the report cannot be written.

    Example:
        >>> write_report("no/such/folder")
        Traceback (most recent call last):
        ...
        gradalign.errors.UserError: There is no folder "no/such/folder"; `gradalign train` and `gradalign compare` make
        folders that have a report.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        raise UserError(
            f'There is no folder "{path}"; `gradalign train` and `gradalign compare` make folders that have a report.'
        )
    if (path / "comparison.yaml").is_file():
        return write_comparison_report(path)
    if (path / "metrics.json").is_file():
        return write_run_report(path)
    raise UserError(
        f'"{path}" holds neither a finished run nor a comparison; `gradalign train` and `gradalign compare` make them.'
    )
