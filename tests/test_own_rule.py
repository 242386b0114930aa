"""The page that shows rules of a user's own: its commands run on the file that it shows, and print what it quotes."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.first_run import run, steps
from tests.test_docs import blocks
from tests.test_first_run import missing

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "own_rule.md"
STEPS = list(steps(PAGE))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with my_rule.py of the page and the examples, and a command ``python`` that finds this checkout."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "my_rule.py").write_text(blocks(PAGE)[0], encoding="utf-8")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=["its own checks", "a command", "verl"])
def test_the_commands_of_the_page_print_what_it_quotes(folder, step):
    if step.needs_verl:
        pytest.importorskip("verl")
    done = run(step, folder, folder / "bin" / "python")
    assert done.returncode == 0, done.stderr
    assert step.quoted.strip() and missing(step.quoted, [line.rstrip() for line in done.stdout.splitlines()]) is None


@pytest.mark.slow
def test_the_figures_in_the_words_are_those_of_the_outputs():
    words, printed = PAGE.read_text(encoding="utf-8"), STEPS[0].quoted
    assert "is 1.24 times that of an even split" in words and "even split's 1.24" in printed


@pytest.mark.slow
def test_trl_takes_the_rule():
    """The settings of a trainer, with the budget of TRL's ``num_generations``."""
    settings = pytest.importorskip("apportion.trl.settings")
    names = {"__name__": "my_rule"}
    code = blocks(PAGE)[0].replace("ALLOCATORS[MiddleFirst.name] = MiddleFirst", "")
    exec(compile(code, "my_rule.py", "exec"), names)
    made = settings.TRLAllocation(allocator=names["MiddleFirst"]().with_budget(6))
    assert made.allocator.size(16).asked == 96
