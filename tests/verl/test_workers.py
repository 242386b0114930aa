"""The group of workers in a run of one process: how long it waits for whom, and what its log says of that.

``test_fault_table`` has what must come of each fault, ``test_failed_runs`` some of them in a real Ray.
"""

import asyncio
import importlib
import logging
import os
import re
import time
from unittest import mock

import pytest

from tests.verl.fault_scene import RESTARTED_SECONDS, Scene, Strike
from tests.verl.fault_table import ALWAYS, both, kills, late, stops

workers = importlib.import_module("apportion.verl.workers")
processes = importlib.import_module("apportion.verl.worker_processes")


@pytest.fixture
def run(tmp_path, assets, caplog):
    """Return ``run(*faults)``, which has each fault strike once, in the first step, and returns the run's log."""

    def ran(*faults, steps=2):
        strikes = tuple((Strike(*fault), (fault[0], 1), 1) for fault in faults)
        with caplog.at_level(logging.WARNING):
            Scene(tmp_path, assets, steps=steps, strikes=strikes).run()
        return caplog.text

    return ran


@pytest.mark.parametrize(
    ("seconds", "slept", "killed"),
    [(2.5, 0.0, False), (8.0, 0.0, True), (6.5, 4.0, False)],
    ids=["goes on in time", "silent for too long", "the trainer stopped"],
)
def test_a_worker_is_killed_if_it_is_silent_for_too_long_while_the_trainer_runs(run, seconds, slept, killed):
    """The seconds in which the trainer itself was stopped do not count."""

    async def stop_both(scene, who, do):
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, lambda: setattr(loop, "now", loop.now + slept))
        return await stops("worker 0", seconds=seconds)(scene, who, do)

    said = run(("score", stop_both))
    assert bool(re.search(r"Worker worker 0 on host was silent for [56] s; it is killed", said)) == killed
    assert ("others take over" in said) == killed


def test_a_worker_that_is_not_restarted_in_time_counts_as_gone(run):
    async def dies_and_hangs(scene, who, do):
        scene.actors["worker 0"].die()
        asyncio.get_running_loop().call_later(RESTARTED_SECONDS + 0.01, scene.actors["worker 0"].stop)
        return await do()

    said = run(("update", both(late(100.0), dies_and_hangs)))
    assert "Ray did not restart worker worker 0 within 60 s; it counts as gone" in said


def test_a_trainer_that_stays_at_one_line_ends_and_the_log_says_where(run, monkeypatch, caplog):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 25.0)
    where = r"step: update_actor\(\)"
    with pytest.raises(RuntimeError, match=f"must leave {where} within 120 seconds, got 120 s, silent: no actor that"):
        run(("update", both(late(ALWAYS), stops("server", seconds=40.0))))
    assert re.search(f"The trainer has been at {where} for 25 s; silent: server", caplog.text)
    assert "No result" not in caplog.text  # nothing is waited for


def test_a_wait_is_reported_with_hosts_workers_and_seconds(run, monkeypatch):
    monkeypatch.setattr(workers, "REPORT_SECONDS", 1.0)
    said = run(("generate", late(15.0)), ("columns", kills("worker 0", "worker 1")))
    assert re.search(r"No result for 9 s\. Waiting for 1 tasks of worker \d on host, heard of [0-2] s ago", said)
    assert re.search(r"Waiting for \d+ tasks of no worker, until Ray restarts it", said)


def test_a_process_with_the_number_of_an_ended_one_is_not_killed():
    with mock.patch.object(processes.os, "kill") as kill:
        processes.end_process(os.getpid(), time.time() - 10**6)
        assert not kill.called
    processes.end_process(2**22 + 1, time.time())  # there is none
