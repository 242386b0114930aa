"""What the documents show runs: every example, and every Python block of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def run(*arguments, **settings):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, **settings
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_run(example, tmp_path):
    done = run(str(example), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_python_blocks_of_the_readme_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        done = run("-c", block, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", MARKDOWN, ids=[path.name for path in MARKDOWN])
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_allocator_of_the_contributing_guide_works():
    block = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    lines = [line.removeprefix("   ") for line in block[1].splitlines()]
    preamble = (
        "from dataclasses import dataclass\nfrom typing import ClassVar\nimport numpy as np\n"
        "from apportion import *\nfrom apportion.types import Plan\n"
    )
    trial = (
        "\nprint(collect(UntilCorrect(), [Prompt('a')], lambda p, n: [[Rollout(False)] * int(n[0])]).asked.tolist())\n"
    )
    done = run("-c", preamble + "\n".join(lines) + trial)
    assert done.stdout.strip() == "[16]", done.stderr
