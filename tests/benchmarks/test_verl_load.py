"""Tests of the benchmark of the coordinator's load: its draws, its counts, and a small run."""

from collections import Counter
from importlib.util import find_spec

import pytest

if find_spec("verl") is None:
    pytest.skip("needs verl", allow_module_level=True)

from apportion.verl.coordinator.messages import RolloutTask, address_of
from benchmarks.verl_load_answers import Answers
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


@pytest.mark.soak
@pytest.mark.slow
def test_the_benchmark_runs_on_a_few_prompts(tmp_path):
    code = (
        "from benchmarks.verl_load import *\n"
        "if __name__ == '__main__':\n"
        f"    study(Path({str(tmp_path)!r}), [('hora', 40, None), ('uniform', 40, 40)], workers=4, seeds=(0, 1))\n"
    )
    (tmp_path / "run.py").write_text(code)  # a file, because processes that are spawned import it
    small_run(tmp_path / "run.py")
    served = cells_of(tmp_path, "verl_load_reports")["served"]
    assert len(served) == 4
    for one in served:
        assert one["reports"] >= max(80, one["calls"])  # a rollout task and a commit of each prompt
        assert one["loop_seconds"] > 0
        assert 0 < one["median_delay"] <= one["p99_delay"] < one["seconds"]
    paced = [one for one in served if one["wanted"] == 40]
    # A busy machine may fall behind the wanted rate, but the clients must never be ahead of it.
    assert all(0 < one["reports"] / one["seconds"] < 80 for one in paced)
