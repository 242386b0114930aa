"""The small base policy of the lab's tests, for measurements at their smallest size."""

import pytest

from tests.policies import lab_cache, small_base_folder  # noqa: F401 - fixtures


@pytest.fixture(scope="session", autouse=True)
def _cache(lab_cache):  # noqa: F811 - a fixture
    """Keep every measurement out of the user's cache."""
