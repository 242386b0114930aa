"""The rule that CONTRIBUTING.md shows passes the contract tests as it is written."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEFORE = """
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from apportion.allocators import ALLOCATORS, Allocator
from apportion.allocators.base import Size
from apportion.checks import check_numbers
from apportion.types import Batch, Plan
"""
AFTER = "\nALLOCATORS[UntilCorrect.name] = UntilCorrect\n"
OPTIONS = ["-q", "-p", "shown_rule", "-p", "no:cacheprovider", "-k", "until_correct or test_settings"]


def test_the_rule_of_the_page_passes(tmp_path):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    shown = textwrap.dedent(re.search(r"^   ```python\n(.*?)^   ```", page, re.MULTILINE | re.DOTALL)[1])
    (tmp_path / "shown_rule.py").write_text(BEFORE + shown + AFTER)
    files = [f"tests/contract/test_{name}.py" for name in ("allocators", "settings", "kept")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *files],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) > 10, done.stdout[-3000:] + done.stderr[-1000:]
