"""What the tests of engines share: where an engine lies, and policies of known success."""

import importlib
import os
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]


def engine(variable, module):
    """Return ``module`` of an engine. Skip unless the environment ``variable`` is set, to 1 or to its checkout.

    The engine must lie outside this tree: what is driven is its own code.
    """
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no engine; see CONTRIBUTING.md")
    found = importlib.import_module(module)
    assert found.__file__ and not Path(found.__file__).resolve().is_relative_to(TREE)
    return found
