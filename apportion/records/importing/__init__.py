"""Runs that other tools recorded, as a ``RunRecord``: one module a format."""

from apportion.records.importing.names import NAMES
from apportion.records.importing.run import NO_STEP, ImportSummary, import_run

__all__ = ["NAMES", "NO_STEP", "ImportSummary", "import_run"]
