"""Tests of the benchmark of the coordinator's load: its draws, its counts, and a small run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("verl") is None:
    pytest.skip("needs verl", allow_module_level=True)

from apportion.verl.coordinator.messages import MetricsLogged, RolloutTask, address_of
from benchmarks.verl_load_alone import LoadPool, Pauses, TimedJournal, load
from benchmarks.verl_load_answers import ALLOCATORS, ROLLOUTS, Answers

ROOT = Path(__file__).parents[2]
ANSWERS = Answers(prompts=40, workers=8, seed=0)


def task_of(prompt, sessions=4):
    return RolloutTask(f"{address_of(prompt).uid}:1", address_of(prompt), tuple(range(sessions)))


def test_equal_seeds_draw_equal_requests_and_answers():
    request, other = ANSWERS.request(), Answers(40, 8, seed=1)
    reports = [ANSWERS.report(task_of(prompt)) for prompt in request.prompts]
    assert reports == [Answers(40, 8, seed=0).report(task_of(prompt)) for prompt in request.prompts]
    assert reports != [other.report(task_of(prompt)) for prompt in request.prompts]
    assert {len(report.rollouts) for report in reports} == {4}
    assert {rollout.correct for report in reports for rollout in report.rollouts} == {True, False}


def test_prompts_are_dealt_evenly_and_clients_know_the_workers():
    request = ANSWERS.request()
    assert list(Counter(request.workers).values()) == [5] * 8
    assert [ANSWERS.worker_of(address_of(prompt).uid) for prompt in request.prompts] == list(request.workers)
    assert len({address_of(prompt).uid for prompt in (*request.prompts, *ANSWERS.request(2).prompts)}) == 80


@pytest.mark.slow
def test_each_task_costs_one_report():
    """A rollout task and a commit of each prompt with uniform; two waves with HORA."""
    assert load("uniform", 40, 8, seed=0).reports == 80
    found = load("hora", 40, 8, seed=0)
    assert 80 < found.reports <= 120
    assert 0 < found.open_seconds + found.report_seconds == found.seconds
    assert 0 < found.journal_seconds < found.seconds and found.anew == 0
    assert found.each_seconds * found.reports == pytest.approx(found.seconds)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_allocator_spends_its_rollouts(name, monkeypatch):
    requested = Counter()

    def send(pool, worker, task):
        pool.sent.append(task)
        requested[worker] += len(task.sessions) if isinstance(task, RolloutTask) else 0

    monkeypatch.setattr(LoadPool, "send", send)
    load(name, 40, 8, seed=0)
    assert 40 * ROLLOUTS / 4 <= requested.total() <= 40 * ROLLOUTS
    assert requested.total() == 40 * ROLLOUTS or name in ("ar3po", "voting")
    assert len(requested) == 8


def test_the_journal_counts_what_is_on_disk(tmp_path):
    journal = TimedJournal(tmp_path / "journal")
    began = journal.path.stat().st_size
    for _ in range(3):
        journal.write(MetricsLogged())
    assert journal.written == journal.path.stat().st_size - began
    assert journal.anew == 0 < journal.seconds
    before = journal.written
    journal.restart({"learnt": 1})
    assert journal.anew == 1 and journal.written == before + journal.path.stat().st_size
    assert 0 < journal.anew_seconds < journal.seconds
    journal.close()


def test_a_pause_is_time_in_which_nothing_else_runs():
    async def held():
        pauses = Pauses()
        ticking = asyncio.create_task(pauses.tick())
        await asyncio.sleep(0)
        time.sleep(0.05)
        await asyncio.sleep(0)
        ticking.cancel()
        return pauses.longest

    assert asyncio.run(held()) >= 0.05


@pytest.mark.slow
@pytest.mark.xdist_group("verl")
def test_the_whole_benchmark_runs_on_a_few_prompts(tmp_path):
    folder = f"Path({str(tmp_path)!r})"
    code = (
        "from benchmarks.verl_load import *\n"
        f"study_alone({folder}, sizes=(20, 40), workers=8, seeds=(0, 1))\n"
        f"study_ray({folder}, workers=8, clients=2, fast=40, rates=(40,), paced_seconds=1, seeds=(0, 1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"verl_load.md", "verl_load_ray.md", "cells"}
    found = {
        **json.loads((tmp_path / "cells" / "verl_load.json").read_text()),
        **json.loads((tmp_path / "cells" / "verl_load_ray.json").read_text()),
    }
    assert len(found["alone"]) == 2 * 2 * len(ALLOCATORS)
    for one in found["served"]:
        assert one["calls"] <= one["reports"] and one["cpu_seconds"] > 0
        assert 0 < one["median_latency"] <= one["p99_latency"] < one["seconds"]
    same = {(one["allocator"], one["seed"]): one["reports"] for one in found["alone"] if one["prompts"] == 40}
    fast = [one for one in found["served"] if one["wanted"] is None]
    assert {(one["allocator"], one["seed"]) for one in fast} & same.keys()
    assert all(one["reports"] == same.get((one["allocator"], one["seed"]), 80) for one in fast)
    paced = [one for one in found["served"] if one["wanted"] == 40]
    # A busy machine may fall behind the wanted rate, but the clients must never be ahead of it.
    assert paced and all(0 < one["reports"] / one["seconds"] < 80 for one in paced)
