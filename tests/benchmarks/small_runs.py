"""Small runs of benchmarks, each in a process of its own."""

import json
import os
import subprocess
import sys

from tests.processes import ROOT


def small_run(*words, seconds=900):
    """Run ``python`` with ``words``, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cells_of(results, name):
    """Return the cells that a benchmark has written beside its table in the folder ``results``."""
    return json.loads((results / "cells" / f"{name}.json").read_text(encoding="utf-8"))
