"""Tests of the benchmark of the coordinator's load: its draws, and a small run."""

from importlib.util import find_spec

import pytest

if find_spec("verl") is None:
    pytest.skip("needs verl", allow_module_level=True)

from tests.benchmarks.small_runs import cells_of, small_run


@pytest.mark.soak
@pytest.mark.slow
def test_the_benchmark_runs_on_a_few_prompts(tmp_path):
    code = f"from pathlib import Path; from benchmarks.verl_load import study; study(Path({str(tmp_path)!r}), 40, 2)"
    small_run("-c", code)
    for runs in cells_of(tmp_path, "verl_load_reports")["served"].values():
        assert len(runs) == 2 and all(rate > 0 and 0 < own < 1e6 and delay > 0 for rate, own, delay in runs)
