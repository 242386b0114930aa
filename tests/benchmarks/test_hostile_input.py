"""Tests of the benchmark of damaged input: its mutations, its judges, its bounds, and a small run."""

import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from random import Random

import pytest

if find_spec("trl") is None or not hasattr(os, "fork"):
    pytest.skip("needs trl and Linux", allow_module_level=True)

from benchmarks.common import cells_of
from benchmarks.hostile_input import (
    BYTES,
    COLUMNS,
    MARKER,
    TABLES,
    TEXT,
    Outcome,
    Target,
    judged,
    nothing_new,
    one_line_errors,
    put_pickle,
    right_settings,
    run_forked,
    same_as_python,
)
from tests.benchmarks.small_runs import small_run

FILE = b'{"id": "a", "success": 0.5}\n{"id": "b", "success": 0.25}\n'


def test_equal_seeds_give_equal_damage():
    for mutation in dict.fromkeys((*TEXT, *BYTES, put_pickle)):
        made = [mutation(Random(seed), FILE, FILE[:28]) for seed in range(30)]
        assert made[:9] == [mutation(Random(seed), FILE, FILE[:28]) for seed in range(9)], mutation
        assert len(set(made)) > 1 and any(content != FILE for content in made), mutation


def test_crafted_pickles_do_execute_code_if_nothing_prevents_it(tmp_path):
    """Otherwise a clean column would prove nothing."""
    load = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    for seed in range(6):
        crafted = put_pickle(Random(seed), b"", b"").hex()
        subprocess.run([sys.executable, "-c", load, crafted], cwd=tmp_path, check=False, capture_output=True)
    assert (tmp_path / MARKER).exists()


def refuse():
    raise ValueError("two\nlines")


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        (lambda: sys.exit(3), 3, ""),
        (lambda: sys.stderr.write(os.getcwd()), 0, "work"),
        (partial(one_line_errors, refuse), 2, "two lines\n"),
        (lambda: {}["missing"], 1, "KeyError: 'missing'\n"),
        (lambda: bytearray(2**33), 1, "MemoryError\n"),
        (lambda: os.kill(os.getpid(), 9), -9, ""),
    ],
)
def test_a_fork_ends_as_a_process_does(tmp_path, act, code, said):
    found = run_forked(act, {"a/b": b"content"}, tmp_path)
    assert found.code == code and found.err.endswith(said) and (tmp_path / "work/a/b").read_bytes() == b"content"


RUN = partial(same_as_python, TABLES["run"][2])
ASKED = partial(same_as_python, TABLES["asked"][2])


@pytest.mark.parametrize(
    ("judge", "name", "content", "right", "wrong"),
    [
        (RUN, "run.jsonl", '{"reward": 1}\n\n{"reward": 0.5}\n', "2 rows, 1.5 in all", "3 rows, 1.5 in all"),
        (RUN, "run.csv", "a,reward\n1,true\n", "1 rows, 1 in all", "1 rows, 0 in all"),
        (ASKED, "asked.csv", "id,prompt,answer\na,x,7\n", "'a' 'x' '7'", "'a' 'x' None"),
        (right_settings, "a.toml", "[t]\nlow = 3\n", '{"t": {"low": 3, "high": 4.0}}', '{"t": {"low": 4}}'),
        (right_settings, "a.toml", '[t]\nlow = "3"\n', '{"t": {"low": "3"}}', '{"t": {"low": 3}}'),
        (nothing_new, "answers.jsonl", "", "a", "b"),
    ],
)
def test_other_values_than_those_of_the_file_are_found(tmp_path, judge, name, content, right, wrong):
    (tmp_path / name).write_text(content)
    assert judge([right], [right], tmp_path / name) and not judge([wrong], [right], tmp_path / name)


def test_a_setting_of_another_type_than_before_is_found(tmp_path):
    (tmp_path / "a.toml").write_text("low = true\n")
    assert not right_settings([json.dumps({"low": True})], [json.dumps({"low": 3})], tmp_path / "a.toml")


def test_a_case_is_judged_by_all_that_it_left(tmp_path):
    target = Target("runs", {"run.csv": b""}, None, lambda found, whole, path: found == whole)
    refused, accepted, traced, unclear, nonsense, executed, beyond = COLUMNS

    def verdict(*outcome):
        return judged(target, Outcome(*outcome), Outcome(0, "right", ""), tmp_path, "run.csv")[0]

    assert verdict(2, "", "run.csv line 3 must be more; raise it\n") == refused
    assert verdict(2, "", "it must be more; raise it\n") == unclear
    assert verdict(0, "right", "a warning\n") == accepted and verdict(0, "", "") == nonsense
    assert verdict(0, "right", "UserWarning: x\n") == traced == verdict(1, "", "Traceback\nKeyError\n")
    assert verdict(-24, "", "") == beyond == verdict(1, "", "Traceback\nMemoryError\n")
    (tmp_path / MARKER).touch()
    assert verdict(0, "right", "") == executed


@pytest.mark.slow
def test_a_few_cases_of_every_kind_show_no_defect(tmp_path):
    """In a process of its own, because every case is a fork of it."""
    small_run("-m", "benchmarks.hostile_input", "--cases", "12", "--results", tmp_path)
    _, *rows = cells_of((tmp_path / "hostile_input.md").read_text().split("\n\n")[1])
    assert rows[-1][0] == "all" and int(rows[-1][1]) == 120
    for row in rows:
        assert [*map(int, row[4:])] == [0] * 5, row
