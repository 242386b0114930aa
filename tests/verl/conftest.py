"""The fixture ``train(overrides)`` runs verl's trainer. Two workers of xdist share the tests that use it.

verl itself is not imported here, because it is slow and warns. With VERL_TESTS_COLD=1 in the environment every process
imports verl again. A test that only passes then has found a fault of the warm start.
"""

import importlib.util
import inspect
import json
import os
import shutil
import sys
import tempfile

import pytest

from tests.verl import harness
from tests.verl.cpu import assets as made

# only for verl's processes, because these modules change torch and verl when they are imported
collect_ignore = ["cpu"]
if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["*.py"]


SHARING = ("test_allocators", "test_command", "test_equality", "test_modes")
"""Files that read each other's runs."""


def pytest_itemcollected(item):
    """Mark tests that run verl as slow, and for one of two xdist workers, because each starts verl once.

    A run waits more than it computes, so two at once take little longer than one. Tests that read the same runs are in
    one group, and so are those that share a Ray.
    """
    fixtures = getattr(item, "fixturenames", ())
    if "warm" in fixtures:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group("verl" if item.path.stem in SHARING else "verl, faults"))
    elif "ray" in fixtures:
        item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    """Return the folder of the policy and the questions."""
    return made.write(tmp_path_factory.mktemp("assets"))


@pytest.fixture(scope="session")
def warm():
    """Provide a program that replaces Python and has verl imported when it starts."""
    if os.environ.get("VERL_TESTS_COLD"):
        yield sys.executable
        return
    with harness.warmed() as python:
        yield python


@pytest.fixture(scope="session")
def train(assets, warm, tmp_path_factory):
    """Return ``train(overrides, **settings)``, which runs verl as ``harness.run`` does and remembers the result.

    With ``folder=`` a run is not remembered, because a second one may resume it there. A run must end well, or be
    killed once it has come ``until`` there, unless it is one that ``fails``.
    """
    known = {}

    def trained(overrides=(), folder=None, fails=False, **settings):
        done = found(overrides, folder, settings)
        assert done.status != 0 if fails else done.status == -9 * ("until" in settings), done.output[-5000:]
        return done

    def found(overrides, folder, settings):
        if folder is not None:
            return harness.run(folder, assets, overrides, python=warm, **settings)
        bound = inspect.signature(harness.run).bind("", "", list(overrides), **settings)
        bound.apply_defaults()  # so that a default that is written out is the same run
        key = json.dumps(bound.arguments, sort_keys=True)
        if key not in known:
            known[key] = harness.run(tmp_path_factory.mktemp("run"), assets, overrides, python=warm, **settings)
        return known[key]

    return trained


@pytest.fixture(scope="session")
def ray():
    """Provide a small Ray in the tests' own process, without a trainer."""
    ray = importlib.import_module("ray")
    # for sockets, whose paths may have about 100 characters
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    small = {"num_cpus": 4, "object_store_memory": 100_000_000, "include_dashboard": False}
    ray.init(**small, _temp_dir=folder, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def transfer_queue(ray):
    """Provide a TransferQueue on that Ray, as verl starts one."""
    tq = importlib.import_module("transfer_queue")
    storage = {"num_data_storage_units": 1, "total_storage_size": 1000}
    tq.init(importlib.import_module("omegaconf").OmegaConf.create({"backend": {"SimpleStorage": storage}}))
    yield tq
    tq.close()


@pytest.fixture
def queue(transfer_queue):
    """Provide the TransferQueue, empty."""
    yield transfer_queue
    for partition, tags in transfer_queue.kv_list().items():
        if tags:
            transfer_queue.kv_clear(keys=list(tags), partition_id=partition)
