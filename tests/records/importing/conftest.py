"""A run that is read from rows."""

import pytest

from apportion.records import open_run
from tests.records.importing.tables import jsonl


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes rows as JSON lines, and reads them with its further arguments."""
    return lambda rows, **given: open_run(jsonl(tmp_path / "run.jsonl", rows), **given)
