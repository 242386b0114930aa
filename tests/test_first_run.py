"""The page that takes a new user through a run of their own: its commands, in its order, print what it quotes."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.first_run import PAGE, Step, run, steps

ROOT = Path(__file__).resolve().parents[1]
STEPS = list(steps())


def missing(quoted, printed):
    """Return the first quoted line that is not printed after the one before it; "..." stands for any lines."""
    place = 0
    for line in quoted.splitlines():
        if line.strip() == "...":
            continue
        while place < len(printed) and printed[place] != line:
            place += 1
        if place == len(printed):
            return line
        place += 1
    return None


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_quotes(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, command in (("apportion", f'"{sys.executable}" -m apportion'), ("python", f'"{sys.executable}"')):
        (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for step in STEPS:
        if step.needs_verl and importlib.util.find_spec("verl") is None:
            continue
        done = run(step, tmp_path, tools / "python")
        assert done.returncode == 0, f"{step.title}: {done.stderr}"
        left_out = missing(step.quoted, [line.rstrip() for line in done.stdout.splitlines()])
        assert left_out is None, f"{step.title} does not print {left_out!r}"
    assert (tmp_path / "before.html").exists() and (tmp_path / "both.html").exists()


def test_the_page_has_a_step_for_each_layout_and_quotes_most_outputs():
    commands = [step.title for step in STEPS]
    for wanted in (
        "diagnose trl_run",
        "diagnose verl_run",
        "diagnose my_run.jsonl",
        "replay",
        "report",
        "apportion.verl",
    ):
        assert any(wanted in command for command in commands)
    assert all(step.quoted.strip() for step in STEPS), "a command without its output"


def test_the_code_of_the_page_is_what_the_diagnosis_prints():
    """The trainer's arguments and verl's overrides on the page are those of the first advice in the quoted output."""
    text = PAGE.read_text(encoding="utf-8")
    assert 'allocator=Uniform(), estimator="reinforce",\n            baseline=Optimal())' in text
    assert 'estimator="reinforce",  # new' in text and "baseline=Optimal(),  #" in text
    overrides = "allocation=uniform algorithm.adv_estimator=apportion_reinforce allocation.baseline=optimal"
    assert text.count(overrides) == 2


def test_marked_blocks_are_left_out(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: reason -->\n```sh\none\n```\n\n```sh\ntwo \\\n    more\n```\n\n```text\nout\n```\n",
        encoding="utf-8",
    )
    assert list(steps(page)) == [Step("two \\\n    more\n", "out\n")]
    assert next(steps(page)).title == "two more"


def test_a_changed_line_is_noticed():
    assert missing("a\n...\nc\n", ["a", "b", "c"]) is None
    assert missing("a\nc\nb\n", ["a", "b", "c"]) == "b"
