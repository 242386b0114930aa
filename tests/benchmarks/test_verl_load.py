"""Tests of the benchmark of the coordinator's load: its draws, and a small run."""

from collections import Counter
from importlib.util import find_spec

import pytest

if find_spec("verl") is None:
    pytest.skip("needs verl", allow_module_level=True)

from apportion.verl.coordinator.messages import RolloutTask, address_of
from benchmarks.verl_load import WORKERS, reported, requested
from tests.benchmarks.small_runs import cells_of, small_run


def test_prompts_are_dealt_evenly_and_answers_are_both_right_and_wrong():
    request = requested(40)
    assert Counter(request.workers) == dict.fromkeys(WORKERS, 10)
    addresses = [address_of(prompt) for prompt in request.prompts]
    assert len({address.uid for address in addresses}) == 40
    reports = [reported(RolloutTask(f"{each.uid}:1", each, (0, 1, 2, 3))) for each in addresses]
    assert {len(report.rollouts) for report in reports} == {4}
    assert {rollout.correct for report in reports for rollout in report.rollouts} == {True, False}


@pytest.mark.soak
@pytest.mark.slow
def test_the_benchmark_runs_on_a_few_prompts(tmp_path):
    code = f"from pathlib import Path; from benchmarks.verl_load import study; study(Path({str(tmp_path)!r}), 40, 2)"
    small_run("-c", code)
    for runs in cells_of(tmp_path, "verl_load_reports")["served"].values():
        assert len(runs) == 2 and all(rate > 0 and 0 < own < 1e6 and delay > 0 for rate, own, delay in runs)
