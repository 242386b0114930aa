"""A run that is read from rows."""

import pytest

from apportion.records import RecordError, open_run
from tests.records.importing.tables import saved


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes rows into a file, and reads them with its further arguments."""
    return lambda rows, name="run.jsonl", **given: open_run(saved(tmp_path / name, rows), **given)


@pytest.fixture
def refuse(opened):
    """Return a function that checks that rows are refused with ``words``."""

    def check(words, *rows, **given):
        with pytest.raises(RecordError, match=words):
            opened(*rows, **given)

    return check
