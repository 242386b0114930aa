"""Show runs: one HTML page that needs no network, or JSON.

``read_sources`` reads rollout logs, imported logs, group counts, lab studies and journals of votes. It
returns a ``RunProfile`` for each run and a ``VoteProfile`` for each vote. ``report_of`` makes the charts and tables of
them, and ``page_of`` and ``json_of`` show these.
"""

from apportion.report.charts import Chart, ReportTable
from apportion.report.page import page_of
from apportion.report.profile import RunProfile, profile_of
from apportion.report.report import RunReport, report_of
from apportion.report.sources import read_sources
from apportion.report.tables import json_of
from apportion.report.votes import VoteProfile

__all__ = [
    "Chart",
    "ReportTable",
    "RunProfile",
    "RunReport",
    "VoteProfile",
    "json_of",
    "page_of",
    "profile_of",
    "read_sources",
    "report_of",
]
