"""A public name stays, or it warned for one version before it left: docs/promises.md."""

import importlib
import inspect
from fnmatch import fnmatch
from itertools import groupby

import pytest

from tests.public_names import RECORD, ROOT, public_names, recorded_names

REMOVED = {
    "TRLAllocation.with_budget": (
        "`TRLAllocation.with_budget` is `with_defaults`",
        "apportion.trl:TRLAllocation.with_defaults",
    ),
}
"""Names and members that left before 0.3.0, without a warning: the words of CHANGELOG.md, and what replaces each.

Nothing is added from 0.3.0 on. A name that leaves then warns with DeprecationWarning for one minor version first. It is
listed in ``WARNED``.
"""

WARNED = {}
"""Names that left after they had warned: the words of CHANGELOG.md that say since when, and what replaces each."""

GONE = REMOVED | WARNED
NAMES = {
    module: [name for _, _, name in found]
    for module, found in groupby((name.partition(":") for name in sorted(recorded_names())), key=lambda each: each[0])
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
def test_every_recorded_name_is_there_or_left_with_a_word(module):
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "apportion":
            raise
        pytest.skip(f"{module} needs {error.name}")
    left = [name for name in missing(imported, NAMES[module]) if not any(fnmatch(name, each) for each in GONE)]
    assert not left, f"deprecate first, as docs/promises.md says: {left}"


def test_every_public_name_is_recorded():
    assert not public_names() - recorded_names(), "run python -m tests.public_names --write"
    lines = RECORD.read_text().splitlines()
    assert lines == sorted(set(lines))


def test_what_left_is_in_the_changelog_and_has_a_successor():
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    for words, successor in GONE.values():
        assert words in changelog and successor in recorded_names()


def test_a_name_or_member_that_left_is_found():
    module = inspect.getmodule(test_a_name_or_member_that_left_is_found)
    assert missing(module, ["has", "gone", "pytest.mark", "Kept.field", "Kept.gone"]) == ["gone", "Kept.gone"]


class Kept:
    field: int
