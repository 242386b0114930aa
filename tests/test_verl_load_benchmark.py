"""The benchmark of the coordinator's load: what it draws, what it counts, and a small run of the whole."""

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

from apportion.integrations.verl.messages import Logged, Order, place_of
from benchmarks.verl_load import spread
from benchmarks.verl_load_alone import Crew, Pauses, TimedJournal, load
from benchmarks.verl_load_answers import ALLOCATORS, ROLLOUTS, Answers

ROOT = Path(__file__).parents[1]
ANSWERS = Answers(prompts=40, workers=8, seed=0)


def order_of(prompt, sessions=4):
    return Order(f"{place_of(prompt).host}:1", place_of(prompt), tuple(range(sessions)))


def test_a_seed_says_what_is_dispatched_and_answered():
    dispatch, other = ANSWERS.dispatch(), Answers(40, 8, seed=1)
    reports = [ANSWERS.report(order_of(prompt)) for prompt in dispatch.prompts]
    assert reports == [Answers(40, 8, seed=0).report(order_of(prompt)) for prompt in dispatch.prompts]
    assert reports != [other.report(order_of(prompt)) for prompt in dispatch.prompts]
    assert {len(report.rollouts) for report in reports} == {4}
    assert {rollout.correct for report in reports for rollout in report.rollouts} == {True, False}


def test_prompts_are_dealt_to_all_workers_and_clients_know_to_whom():
    dispatch = ANSWERS.dispatch()
    assert list(Counter(dispatch.workers).values()) == [5] * 8
    assert [ANSWERS.worker_of(place_of(prompt).host) for prompt in dispatch.prompts] == list(dispatch.workers)
    assert len({place_of(prompt).host for prompt in (*dispatch.prompts, *ANSWERS.dispatch(2).prompts)}) == 80


def test_what_a_round_trip_is_costs_a_report():
    """An order and a publication of each prompt under uniform; under HORA two waves, for nobody has all its budget."""
    assert load("uniform", 40, 8, seed=0).reports == 80
    found = load("hora", 40, 8, seed=0)
    assert 80 < found.reports <= 120
    assert 0 < found.open_seconds + found.report_seconds == found.seconds
    assert 0 < found.journal_seconds < found.seconds and found.anew == 0
    assert found.each_seconds * found.reports == pytest.approx(found.seconds)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_allocator_spends_as_many_rollouts_as_are_said(name, monkeypatch):
    ordered = Counter()

    def send(crew, worker, task):
        crew.sent.append(task)
        ordered[worker] += len(task.sessions) if isinstance(task, Order) else 0

    monkeypatch.setattr(Crew, "send", send)
    load(name, 40, 8, seed=0)
    assert 40 * ROLLOUTS / 4 <= ordered.total() <= 40 * ROLLOUTS
    assert ordered.total() == 40 * ROLLOUTS or name in ("ar3po", "voting")
    assert len(ordered) == 8


def test_the_journal_counts_what_is_on_disk(tmp_path):
    journal = TimedJournal(tmp_path / "journal")
    began = journal.path.stat().st_size
    for _ in range(3):
        journal.write(Logged())
    assert journal.written == journal.path.stat().st_size - began
    assert journal.anew == 0 < journal.seconds
    before = journal.written
    journal.restart({"learnt": 1})
    assert journal.anew == 1 and journal.written == before + journal.path.stat().st_size
    assert 0 < journal.anew_seconds < journal.seconds
    journal.close()


def test_a_pause_is_what_nobody_else_can_use():
    async def held():
        pauses = Pauses()
        ticking = asyncio.create_task(pauses.tick())
        await asyncio.sleep(0)
        time.sleep(0.05)
        await asyncio.sleep(0)
        ticking.cancel()
        return pauses.longest

    assert asyncio.run(held()) >= 0.05


def test_the_interval_is_students():
    assert spread([1.0, 2.0, 3.0], ".2f") == "2.00 ± 2.48"  # 4.303 / sqrt(3)
    assert spread([1.0, 1.0], ".1f") == spread([1.0], ".1f") == "1.0"


@pytest.mark.slow
@pytest.mark.xdist_group("verl")
def test_the_whole_benchmark_runs_on_a_few_prompts(tmp_path):
    settings = "sizes=(20, 40), workers=8, clients=2, fast=40, rates=(40,), paced_seconds=1, seeds=(0, 1)"
    done = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.verl_load import *; main(Path({str(tmp_path)!r}), {settings})"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"verl_load.md", "verl_load.json"}
    found = json.loads((tmp_path / "verl_load.json").read_text())
    assert len(found["alone"]) == 2 * 2 * len(ALLOCATORS)
    for one in found["served"]:
        assert one["calls"] <= one["reports"] and one["cpu_seconds"] > 0
        assert 0 < one["median_latency"] <= one["p99_latency"] < one["seconds"]
    same = {(one["allocator"], one["seed"]): one["reports"] for one in found["alone"] if one["prompts"] == 40}
    fast = [one for one in found["served"] if one["wanted"] is None]
    assert {(one["allocator"], one["seed"]) for one in fast} & same.keys()
    assert all(one["reports"] == same.get((one["allocator"], one["seed"]), 80) for one in fast)
    paced = [one for one in found["served"] if one["wanted"] == 40]
    assert paced and all(20 < one["reports"] / one["seconds"] < 80 for one in paced)
