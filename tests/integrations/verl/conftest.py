"""verl's trainer for tests: ``train(overrides)`` runs it as a whole. All tests that run it share one worker process.

verl itself is not imported here: it is slow, and warns. With VERL_TESTS_COLD=1 in the environment, every process
imports it anew: a test that fails only without that has found a fault of the warm start.
"""

import importlib.util
import json
import os
import shutil
import sys
import tempfile

import pytest

from tests.integrations.verl import harness
from tests.integrations.verl.cpu import assets as made

# loaded by verl's processes alone: they change torch and verl where they are imported
collect_ignore = ["cpu"]
if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["*.py"]


def pytest_configure(config):
    # known to pytest also where xdist is not
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker process runs")


def pytest_itemcollected(item):
    """Whatever runs verl is slow, and one worker process does it: a second would be a second warm start."""
    if "warm" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group("verl"))


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    """The folder of the policy and the questions."""
    return made.write(tmp_path_factory.mktemp("assets"))


@pytest.fixture(scope="session")
def warm():
    """A program that is Python with verl imported, for the whole session."""
    if os.environ.get("VERL_TESTS_COLD"):
        yield sys.executable
        return
    with harness.warmed() as python:
        yield python


@pytest.fixture(scope="session")
def train(assets, warm, tmp_path_factory):
    """``train(overrides, **settings)`` runs verl, as ``harness.run`` does; the same call again is answered from memory.

    With ``folder=`` a run is never remembered: the second one in a folder resumes what the first one saved there.
    """
    known = {}

    def trained(overrides=(), folder=None, **settings):
        if folder is not None:
            return harness.run(folder, assets, overrides, python=warm, **settings)
        key = json.dumps([list(overrides), settings], sort_keys=True)
        if key not in known:
            known[key] = harness.run(tmp_path_factory.mktemp("run"), assets, overrides, python=warm, **settings)
        return known[key]

    return trained


@pytest.fixture(scope="session")
def ray():
    """A small Ray in the tests' own process, without a trainer; one a session."""
    ray = importlib.import_module("ray")
    # sockets lie in it, and their paths may have about 100 characters
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    small = {"num_cpus": 4, "object_store_memory": 100_000_000, "include_dashboard": False}
    ray.init(**small, _temp_dir=folder, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def transfer_queue(ray):
    """A TransferQueue on it, as verl starts one."""
    tq = importlib.import_module("transfer_queue")
    storage = {"num_data_storage_units": 1, "total_storage_size": 1000}
    tq.init(importlib.import_module("omegaconf").OmegaConf.create({"backend": {"SimpleStorage": storage}}))
    yield tq
    tq.close()


@pytest.fixture
def queue(transfer_queue):
    """The TransferQueue, empty."""
    yield transfer_queue
    for partition, tags in transfer_queue.kv_list().items():
        if tags:
            transfer_queue.kv_clear(keys=list(tags), partition_id=partition)
