"""One small base policy for all tests of the lab, trained once per session on one thread, in a separate cache."""

import copy
import os

import pytest
import torch

from apportion.lab.policy.base import trained_policy
from apportion.lab.policy.recipes import Recipe, Stage
from apportion.lab.world.demonstrator import EASY, MEDIUM

torch.set_num_threads(1)

SMALL = Recipe(
    (Stage(EASY, steps=360, learning_rate=4e-3), Stage(MEDIUM, steps=40, learning_rate=1e-3)),
    sequences=24_000,
    operation_weights=(4, 2, 1, 1, 1),
)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def trained_base(_cache):
    return trained_policy(SMALL)


@pytest.fixture
def small_base(trained_base):
    """Return a copy, so that no test sees another's gradients or updates."""
    return copy.deepcopy(trained_base)


@pytest.fixture(scope="session")
def small_base_folder(trained_base):
    """Return the small base's folder, as a user names a saved policy."""
    return str(SMALL.directory)
