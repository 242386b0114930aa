"""Run a selection of these tests with the oldest supported TRL, in a process with its folder first on the path.

``make`` installs it into the folder ``OLDEST_TRL`` and sets a variable of that name. Without the variable the test is
skipped if the folder is missing. The selection leaves out what that version does not have: streams of prompts, rewards
of environments, tools beside a ``rollout_func``, and continuous batching with this transformers.
"""

import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent.relative_to(ROOT)
GIVEN = os.environ.get("OLDEST_TRL")
FOLDER = ROOT / (GIVEN or ".venv/trl-1.0")

CHOSEN = {
    "test_parity": "test_parity",
    "test_groups": "test_groups and (several or votes or reuse)",
    "test_checkpoints": "test_checkpoints and (another_run or own_log or last_whole)",
    "test_modes": "test_modes and (conversations or scores or adapters)",
    "test_penalty": "test_penalty",
    "test_failures": "test_failures",
    "test_meter": "test_meter",
    "test_whole_groups": "test_whole_groups",
    "test_vllm": "test_vllm",
}
"""The tests of each file, as a pytest expression. `make soak` runs them all, `make test` those in ``FEW``."""

FEW = {"test_parity": "test_parity and (iterations or masked or gdpo)", "test_penalty": "test_penalty"}

RUN = "import sys, trl, pytest; print('TRL', trl.__version__, trl.__file__); sys.exit(pytest.main(sys.argv[1:]))"


def oldest_supported():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = next(each.specifier for each in map(Requirement, extras["trl"]) if each.name == "trl")
    return next(Version(bound.version) for bound in bounds if bound.operator == ">=")


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [pytest.param(CHOSEN, id="all", marks=pytest.mark.soak), pytest.param(FEW, id="few")]
)
def test_the_oldest_trl_passes(tmp_path, chosen):
    if GIVEN is None and not FOLDER.exists():
        pytest.skip(f"no {FOLDER.relative_to(ROOT)}, which make {FOLDER.relative_to(ROOT)} installs")
    assert FOLDER.exists(), f"OLDEST_TRL is {GIVEN}, where there is nothing"
    report = tmp_path / "report.xml"
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    files = [str(HERE / f"{name}.py") for name in chosen]
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    options += ["-m", "soak or not soak"] * (chosen is CHOSEN)
    options += ["-k", " or ".join(f"({each})" for each in chosen.values()), f"--junitxml={report}"]
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *files, *options],
        cwd=ROOT,
        env=outer | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    word, version, file = ran.stdout.splitlines()[0].split(maxsplit=2)
    assert (word, Version(version)) == ("TRL", oldest_supported()) and Path(file).is_relative_to(FOLDER)
    cases = list(ET.parse(report).getroot().iter("testcase"))
    passed = Counter(case.get("classname").rsplit(".", 1)[-1] for case in cases if not len(case))
    assert set(passed) == set(chosen) and min(passed.values()) >= 3, passed
    assert all(child.tag == "skipped" for case in cases for child in case)
