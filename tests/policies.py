"""The small base policy of the lab's tests: trained once for all processes of a test run, on one thread."""

import os

import pytest
from filelock import FileLock

from apportion.lab.policy.base import trained_policy
from benchmarks.small_study import RECIPE as SMALL


@pytest.fixture(scope="session")
def lab_cache(tmp_path_factory):
    """Put the lab's cache into a folder of this test run, which the workers of xdist share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "lab-cache"
    folder.mkdir(exist_ok=True)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def small_base_folder(lab_cache):
    """Return the small base's folder, as a user names a saved policy."""
    with FileLock(lab_cache / "small.lock"):  # the second worker waits, and does not train it again
        trained_policy(SMALL)
    return str(SMALL.directory)
