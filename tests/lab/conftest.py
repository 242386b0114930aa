"""The small base policy for all tests of the lab, in a cache of the test run."""

import copy

import pytest
import torch

from apportion.lab.policy.base import trained_policy
from tests.lab.states import STUDY, trained
from tests.policies import SMALL, lab_cache, small_base_folder  # noqa: F401 - fixtures

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cache(lab_cache):  # noqa: F811 - a fixture
    """Keep every test of the lab out of the user's cache."""


@pytest.fixture(scope="session")
def trained_base(small_base_folder):  # noqa: F811 - a fixture
    return trained_policy(SMALL)


@pytest.fixture
def small_base(trained_base):
    """Return a copy, so that no test sees another's gradients or updates."""
    return copy.deepcopy(trained_base)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, small_base_folder):  # noqa: F811 - a fixture
    """Return the working directory of a study that nothing disturbed, and what its command said."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "quick.toml").write_text(STUDY.format(base=small_base_folder))
    return folder, trained(folder, "quick.toml")
