"""Reports: one HTML file of a run or of a comparison, which needs no other file and no network.

They are made from the files of a folder alone, so they can be made again at any time: no number in them is from
anywhere else. This room imports nothing of GradAlign but its errors, and loads no TensorFlow.
"""

from gradalign.report.write import REPORT, write_comparison_report, write_report, write_run_report

__all__ = ["REPORT", "write_comparison_report", "write_report", "write_run_report"]
