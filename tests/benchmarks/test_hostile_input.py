"""Tests of the benchmark of damaged input: its mutations, its judges, its bounds, and a small run."""

import os
import subprocess
import sys
from importlib.util import find_spec
from random import Random

import pytest

if find_spec("trl") is None or not hasattr(os, "fork"):
    pytest.skip("needs trl and Linux", allow_module_level=True)

from benchmarks.common import cells_of
from benchmarks.hostile_input import MARKER, put_pickle
from tests.benchmarks.small_runs import small_run


def test_crafted_pickles_do_execute_code_if_nothing_prevents_it(tmp_path):
    """Otherwise a clean column would prove nothing."""
    load = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    for seed in range(6):
        crafted = put_pickle(Random(seed), b"", b"").hex()
        subprocess.run([sys.executable, "-c", load, crafted], cwd=tmp_path, check=False, capture_output=True)
    assert (tmp_path / MARKER).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small_base_folder")  # otherwise the process would train it again
def test_a_few_cases_of_every_kind_show_no_defect(tmp_path):
    """In a process of its own, because every case is a fork of it."""
    small_run("-m", "benchmarks.hostile_input", "--cases", "4", "--results", tmp_path)
    _, *rows = cells_of((tmp_path / "hostile_input.md").read_text().split("\n\n")[1])
    assert rows[-1][0] == "all" and int(rows[-1][1]) == 36
    for row in rows:
        assert [*map(int, row[4:])] == [0] * 5, row
