"""The page that shows rules of a user's own: its commands print what it quotes, and its rules pass the contract."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.test_docs import ROOT, blocks
from tests.test_first_run import check, missing, steps
from tests.warm import cold

PAGE = ROOT / "docs" / "own_rule.md"
STEPS = steps(PAGE)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=["its own checks", "a command", "verl"])
def test_the_commands_of_the_page_print_what_it_quotes(tmp_path, step):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "my_rule.py").write_text(blocks(PAGE)[0])
    if not step.needs_verl:
        check(step, tmp_path)
        return
    pytest.importorskip("verl")
    python = tmp_path / "python"  # a new process, because verl imports the rule as it is imported
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-ec", step.command]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    assert step.quoted.strip() and missing(step.quoted, done.stdout) is None


def test_trl_takes_the_rule():
    """The settings of a trainer, with the budget of TRL's ``num_generations``."""
    settings = pytest.importorskip("apportion.trl.settings")
    names = {"__name__": "my_rule"}
    code = blocks(PAGE)[0].replace("ALLOCATORS[MiddleFirst.name] = MiddleFirst", "")
    exec(compile(code, "my_rule.py", "exec"), names)
    made = settings.TRLAllocation(allocator=names["MiddleFirst"]().with_budget(6))
    assert made.allocator.size(16).asked == 96


NAMESPACE = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from apportion.allocators import ALLOCATORS, Allocator
from apportion.allocators.base import Size
from apportion.checks import check_numbers
from apportion.types import Batch, Plan
"""


def test_rules_of_ones_own_pass_the_contract_as_the_pages_say(tmp_path):
    """Those of the page and of the example, and the one that CONTRIBUTING.md shows."""
    shown = re.search(r"^   ```python\n(.*?)^   ```", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)[
        1
    ]
    (tmp_path / "shown.py").write_text(
        f"{NAMESPACE}{textwrap.dedent(shown)}\nALLOCATORS[UntilCorrect.name] = UntilCorrect\n"
    )
    (tmp_path / "my_rule.py").write_text(blocks(PAGE)[0])
    rules = {"my_rule": "middle_first", "pilot_commit": "pilot_commit", "shown": "until_correct"}
    done = cold(
        *("-m", "pytest", *(word for module in rules for word in ("-p", module)), "-p", "no:cacheprovider"),
        *("-qk", f"{' or '.join(rules.values())} or test_settings", "tests/contract"),
        PYTHONPATH=os.pathsep.join(map(str, (tmp_path, ROOT / "examples", ROOT))),
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) > 45, done.stdout[-3000:] + done.stderr[-1000:]
