"""Small runs of benchmarks, each in a process of its own."""

import json

from tests.warm import cold


def small_run(*words):
    """Run ``python`` with ``words``, and return what it printed."""
    done = cold(*words, seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cells_of(results, name):
    """Return the cells that a benchmark has written beside its table in the folder ``results``."""
    return json.loads((results / "cells" / f"{name}.json").read_text())
