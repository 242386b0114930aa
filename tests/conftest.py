"""Settings of all tests."""

import gc
import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported, which reads it once: no test asks the hub

import pytest
from hypothesis import settings

# Machines are noisy, and a slow example is no wrong one. `make soak` draws ten times as many.
settings.register_profile("house", deadline=None, max_examples=40)
settings.register_profile("soak", deadline=None, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup: the processes that tests interrupt inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until the tests are collected: it visits every imported module again and again


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Let ``--dist loadgroup`` see the groups: xdist 3.8 writes them to ``_nodeid``, which pytest 9.2 does not read."""
    for item in items:
        if "_nodeid" in vars(item):
            item._id = type(item._id).parse(item._nodeid)


def pytest_collection_finish():
    """Leave the imported modules out of every later garbage collection, which takes a third of a short training run."""
    gc.collect()
    gc.freeze()
    gc.enable()
