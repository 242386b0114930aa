"""A public name comes, goes or changes its place only where somebody meant it: docs/promises.md."""

import importlib
import inspect
from itertools import groupby

import pytest

from tests.public_names import public_names, recorded_names

NAMES = {
    module: [name for _, _, name in found]
    for module, found in groupby((name.partition(":") for name in recorded_names()), key=lambda each: each[0])
}


def has(owner, name):
    """Return whether ``owner`` has the name, also as a field without a default."""
    bases = getattr(owner, "__mro__", ())
    return hasattr(owner, name) or any(name in inspect.get_annotations(base) for base in bases)


def missing(module, names):
    """Return those of ``names`` that an imported module does not have. A member is looked up in its class."""
    left = []
    for name in names:
        own, _, member = name.partition(".")
        if not hasattr(module, own) or (member and not has(getattr(module, own), member)):
            left.append(name)
    return left


def case(module):
    """Return a parameter of a test, marked as slow if the module imports a training framework."""
    framework = module.split(".")[1:2] in (["lab"], ["trl"], ["verl"], ["tinker"])
    return pytest.param(module, marks=pytest.mark.slow if framework else ())


@pytest.mark.parametrize("module", map(case, NAMES))
def test_every_recorded_name_can_be_imported(module):
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "apportion":
            raise
        pytest.skip(f"{module} needs {error.name}")
    assert not missing(imported, NAMES[module])


def test_the_record_has_today_s_public_names():
    names = sorted(public_names())
    assert recorded_names() == names, "say so in CHANGELOG.md, and run python -m tests.public_names --write"


def test_a_name_or_member_that_left_is_found():
    module = inspect.getmodule(test_a_name_or_member_that_left_is_found)
    assert missing(module, ["has", "gone", "pytest.mark", "Kept.field", "Kept.gone"]) == ["gone", "Kept.gone"]


class Kept:
    field: int
