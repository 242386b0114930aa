"""Tests of what a value belongs to: the code that its cell reaches, and not its words or its place."""

import sys

import pytest

from benchmarks.evidence import reach
from benchmarks.evidence.registry import cell_named

SMALL = {
    "benchmarks/one.py": (
        '"""Words."""\nimport logging\nfrom apportion.two import RULES, Base\nfrom apportion import two\nLIMIT = 3\n'
        'def measure(name):\n    """Words."""\n    if name == "":\n        raise ValueError(f"a {name}")\n'
        '    logging.info("said")\n    return RULES[name]().plan(two.double(LIMIT))\n'
    ),
    "apportion/two.py": (
        "class Base:\n    def plan(self, n):\n        return n + self.more\n    def unused(self):\n        return 0\n"
        'class First(Base):\n    name = "first"\n    more = 1\n'
        'class Second(Base):\n    name = "second"\n    more = 2\n'
        "RULES = {rule.name: rule for rule in (First, Second)}\n"
        "def double(n):\n    return 2 * n\ndef unreached(n):\n    return n\n"
    ),
}


def key(sources, name="first"):
    found = reach.Code(sources).reached([("benchmarks.one", "measure")], {name})
    return str(sorted(found.items()))


def changed(file, old, new):
    assert old in SMALL[file]
    return SMALL | {file: SMALL[file].replace(old, new)}


@pytest.mark.parametrize(
    ("file", "old", "new", "matters"),
    [
        ("benchmarks/one.py", "LIMIT = 3", "LIMIT = 4", True),
        ("benchmarks/one.py", '"""Words."""', '"""Others."""', False),
        ("benchmarks/one.py", "LIMIT = 3", "# why\nLIMIT = 3", False),
        ("benchmarks/one.py", 'f"a {name}"', 'f"no {name}"', False),
        ("benchmarks/one.py", '"said"', '"told"', False),
        ("benchmarks/one.py", "def measure(name)", "def measure(name: str) -> int", False),
        ("apportion/two.py", "2 * n", "3 * n", True),
        ("apportion/two.py", "n + self.more", "n - self.more", True),
        ("apportion/two.py", "more = 1", "more = 3", True),
        ("apportion/two.py", "more = 2", "more = 3", False),
        ("apportion/two.py", "return 0", "return 1", False),
        ("apportion/two.py", "    return n\n", "    return n + 1\n", False),
    ],
)
def test_what_is_reached_counts_and_words_do_not(file, old, new, matters):
    assert (key(changed(file, old, new)) != key(SMALL)) is matters


def test_another_rule_of_the_registry_is_reached_by_its_name():
    assert key(changed("apportion/two.py", "more = 2", "more = 3"), "second") != key(SMALL, "second")


def test_what_a_cell_runs_is_reached():
    """A trace of two cells that take no time. Lambdas of a class belong to it."""
    for name in ("vip_allocation.counts_by_p", "ar3po.stages"):
        cell, ran = cell_named(name), set()

        def noted(frame, event, _, ran=ran):
            path = frame.f_code.co_filename
            if event == "call" and path.startswith((f"{reach.ROOT}/apportion/", f"{reach.ROOT}/benchmarks/")):
                ran.add(frame.f_code.co_qualname.split(".<locals>")[0].removesuffix(".<lambda>"))

        sys.setprofile(noted)
        try:
            cell.measure()
        finally:
            sys.setprofile(None)
        ran = {".".join(each.split(".")[:2]) for each in ran if not each.startswith("<")}
        assert len(ran) > 20 and ran <= cell.reached().keys()
