"""Tests of the benchmark of damaged input: its mutations, its judges, its bounds, and a small run."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

if find_spec("verl") is None or not hasattr(os, "pidfd_open"):
    pytest.skip("needs verl and Linux", allow_module_level=True)

from benchmarks.hostile_forks import Outcome, run_forked
from benchmarks.hostile_input import Case, judge
from benchmarks.hostile_judges import Accepted, Unreadable, ballots, judge_allocate, rows_of, strict_json
from benchmarks.hostile_mutations import BYTES, MARKER, PICKLED, TEXT, change_arguments, payloads
from benchmarks.hostile_targets import Seed, Target
from tests.benchmarks.small_runs import cells_of, small_run

FILE = b'{"id": "a", "success": 0.5}\n{"id": "b", "success": 0.25}\n'
BALLOT = {
    "id": "a", "question_hash": "h", "answer": "7", "gold": None, "correct": None, "votes": {"7": 2, "8": 1},
    "samples": 4, "failed": 0, "unparsed": 1, "cancelled": 0, "waves": 1, "texts": 4, "stopped": "rule",
    "prompt_length": 3, "prompt_tokens": 12, "completion_tokens": 9, "seconds": 1.0, "disagreement": 0.1,
}  # fmt: skip


def test_equal_seeds_give_equal_damage():
    for mutation in dict.fromkeys((*TEXT, *BYTES, *PICKLED)):
        made = [mutation(Random(seed), FILE, FILE[:28]) for seed in range(30)]
        assert made[:9] == [mutation(Random(seed), FILE, FILE[:28]) for seed in range(9)], mutation
        assert len(set(made)) > 1 and any(content != FILE for content in made), mutation


def test_damaged_command_lines_can_be_passed_to_a_process():
    own = ["allocate", "--budget", "12", "--success", "0.1,0.5"]
    made = [change_arguments(Random(seed), own, own) for seed in range(300)]
    assert all("\0" not in argument for arguments in made for argument in arguments)
    assert sum(arguments != own for arguments in made) > 250
    for arguments in made:
        [os.fsencode(argument) for argument in arguments]


def test_crafted_pickles_do_execute_code_if_nothing_prevents_it(tmp_path):
    """Otherwise a clean column would prove nothing."""
    load = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    for number, payload in enumerate(payloads()[:4]):
        folder = tmp_path / str(number)
        folder.mkdir()
        subprocess.run([sys.executable, "-c", load, payload.hex()], cwd=folder, check=False, capture_output=True)
        assert (folder / MARKER).exists(), number


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda: sys.exit(2), 2),
        (lambda: sys.exit("a line"), 1),
        (lambda: None, 0),
        (lambda: {}["missing"], 1),
        (lambda: bytearray(2**33), 1),
        (lambda: os.kill(os.getpid(), 9), -9),
    ],
)
def test_a_fork_ends_as_a_process_does(tmp_path, act, code):
    work = tmp_path / "work"
    work.mkdir()
    found = run_forked(act, work, {})
    assert found.code == code and found.memory < 2**31
    assert ("Traceback" in found.err) == (code == 1 and "a line" not in found.err)


def test_a_fork_reports_its_output_its_time_and_its_memory(tmp_path):
    work = tmp_path / "work"
    work.mkdir()

    def act():
        filled = bytearray(os.urandom(2**26))
        sys.stderr.write(f"{len(filled) and Path.cwd()}\n")

    found = run_forked(act, work, {})
    assert found.err == f"{work}\n" and 2**25 < found.memory < 2**30 and found.seconds > 0


def test_independent_readers_refuse_what_is_ambiguous(tmp_path):
    for text in ('{"a": 1, "a": 2}', "NaN", "[1", '"\\ud800"', "[" * 100_000):
        with pytest.raises(Unreadable):
            strict_json(text)
    path = tmp_path / "table.csv"
    path.write_text("id,success\na,0.5,1\n")
    with pytest.raises(Unreadable):
        rows_of(path)


def test_ballots_that_no_vote_has_written_are_found(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(BALLOT) + '\n{"id": "torn')
    assert list(ballots(path)) == ["a"]
    wrong = {"samples": 5, "votes": {"7": 2, "8": 1.0}, "answer": "9", "seconds": -1, "stopped": "failures", "id": 3}
    for field, value in wrong.items():
        path.write_text(json.dumps(BALLOT | {field: value}) + "\n")
        with pytest.raises(Unreadable):
            ballots(path)


def test_wrong_counts_are_found(tmp_path):
    (tmp_path / "table.jsonl").write_bytes(FILE)
    arguments = "allocate --budget 12 --low 3 --high 9 --input table.jsonl".split()  # noqa: SIM905 - a command
    wrong = [
        ([5, 7], ""),
        ([5, 6], "counts sum to 11"),
        ([2, 10], "counts from 2 to 10"),
        ([12], "1 counts for 2 rows"),
    ]
    for counts, said in wrong:
        printed = json.dumps({"counts": counts, "ids": ["a", "b"]})
        assert judge_allocate(Accepted(arguments, tmp_path, printed, "")).startswith(said)
        assert judge_allocate(Accepted(arguments, tmp_path, printed.replace('"b"', '"c"'), "")) != ""


def test_a_case_is_judged_by_all_that_it_left(tmp_path):
    work = tmp_path / "a" / "b" / "work"
    work.mkdir(parents=True)
    target = Target("CSV", "none", (), lambda case: "" if case.out == "right" else "wrong")
    case = Case(target, Seed({}, ""), 0, "none", b"", ())
    refused = Outcome(2, 0.1, 0, "", "error: it must be more; raise it\n")

    def verdict(outcome):
        return judge(case, Accepted((), work, outcome.out, outcome.err), outcome)[0]

    assert verdict(refused) == "refused" and verdict(replace(refused, code=0)) == "lines"
    assert verdict(Outcome(0, 0.1, 0, "right", "")) == "right" and verdict(Outcome(0, 0.1, 0, "", "")) == "nonsense"
    assert verdict(replace(refused, err="error: one\nerror: two\n")) == "lines"
    assert verdict(replace(refused, err="Traceback (most recent call last):\nKeyError\n")) == "traceback"
    assert verdict(replace(refused, code=-24)) == "bounds" and verdict(replace(refused, code=3)) == "lines"
    (tmp_path / "elsewhere").touch()
    assert verdict(refused) == "elsewhere"
    (work / MARKER).touch()
    assert verdict(refused) == "executed"


@pytest.mark.soak  # forty processes; each reader has tests of damaged files in its room
@pytest.mark.slow
def test_a_few_cases_of_every_format_show_no_defect(tmp_path):
    """In a process of its own, because every case is a fork of it."""
    small_run("-m", "benchmarks.hostile_input", "--cases", "4", "--results", tmp_path)
    found = cells_of(tmp_path, "hostile_input")
    assert found["defects"] == []
    total = found["rows"][-1]
    assert total[:2] == ["all", "all"] and 30 < int(total[2]) == sum(map(int, total[3:6]))
