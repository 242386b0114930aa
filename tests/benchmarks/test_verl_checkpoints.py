"""Tests of the benchmark of verl's checkpoints: a small run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.benchmarks.small_runs import cells_of, small_run

if find_spec("verl") is None:
    pytest.skip("needs verl", allow_module_level=True)


@pytest.mark.soak  # tests/engines/test_saved_parts has what it measures
def test_shared_checkpoints_write_less(tmp_path: Path) -> None:
    sizes = "--answers 600 --tokens 500 --new 30 --checkpoints 3"
    small_run("-m", "benchmarks.verl_checkpoints", *sizes.split(), "--results", tmp_path)
    found = cells_of(tmp_path, "verl_checkpoints")
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    assert [row["checkpoint"] for row in rows] == ["in one file", "shared"] * 3
    for whole, shared in zip(rows[2::2], rows[3::2], strict=True):
        mib = [float(row["further MiB"].split(" ")[0]) for row in (whole, shared)]
        assert whole["reuse"] == shared["reuse"] and 0 < 2 * mib[1] < mib[0]
