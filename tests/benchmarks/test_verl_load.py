"""Tests of the benchmark of the coordinator's load: its draws, its counts, and a small run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from importlib.util import find_spec

import pytest

if find_spec("verl") is None:
    pytest.skip("needs verl", allow_module_level=True)

from apportion.verl.coordinator.messages import RolloutTask, address_of
from benchmarks.verl_load_alone import LoadPool, Pauses, load
from benchmarks.verl_load_answers import ALLOCATORS, ROLLOUTS, Answers
from tests.benchmarks.small_runs import cells_of, small_run

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


@pytest.mark.soak
@pytest.mark.slow
def test_the_benchmark_runs_on_a_few_prompts_alone_and_behind_rays_calls(tmp_path):
    folder, sizes = f"Path({str(tmp_path)!r})", [(name, 40) for name in ALLOCATORS]
    code = (
        "from benchmarks.verl_load import *\n"
        "if __name__ == '__main__':\n"
        f"    study_alone({folder}, {sizes}, workers=8, seeds=(0, 1))\n"
        f"    study_reports({folder}, [('hora', 40, None), ('uniform', 40, 40)], workers=4, seeds=(0, 1))\n"
    )
    (tmp_path / "run.py").write_text(code)  # a file, because processes that are spawned import it
    small_run(tmp_path / "run.py")
    assert {path.name for path in tmp_path.glob("*.md")} == {"verl_load.md", "verl_load_reports.md"}
    alone, served = cells_of(tmp_path, "verl_load"), cells_of(tmp_path, "verl_load_reports")
    reports = {(one["allocator"], one["seed"]): one["reports"] for one in alone["alone"]}
    assert reports.keys() == {(name, seed) for name in ALLOCATORS for seed in (0, 1)}
    assert len(served["served"]) == 4
    for one in served["served"]:
        assert one["reports"] == reports[one["allocator"], one["seed"]] >= one["calls"]
        assert 0 < one["loop_seconds"] <= one["cpu_seconds"]
        assert 0 < one["median_delay"] <= one["p99_delay"] < one["seconds"]
    paced = [one for one in served["served"] if one["wanted"] == 40]
    # A busy machine may fall behind the wanted rate, but the clients must never be ahead of it.
    assert all(0 < one["reports"] / one["seconds"] < 80 for one in paced)
