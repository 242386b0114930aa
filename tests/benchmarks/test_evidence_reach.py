"""Tests of what a value belongs to: the code that its cell reaches, and not its words or its place."""

import sys

from benchmarks.evidence import reach
from benchmarks.evidence.registry import cell_named
from tests.cases import check_all, lines

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


CHANGES = r'''
    benchmarks/one.py => LIMIT = 3       => LIMIT = 4          => matters
    benchmarks/one.py => """Words."""    => """Others."""      =>
    benchmarks/one.py => LIMIT = 3       => # why\nLIMIT = 3   =>
    benchmarks/one.py => f"a {name}"     => f"no {name}"       =>
    benchmarks/one.py => "said"          => "told"             =>
    benchmarks/one.py => (name):         => (name: str):       =>
    apportion/two.py  => 2 * n           => 3 * n              => matters
    apportion/two.py  => n + self.more   => n - self.more      => matters
    apportion/two.py  => more = 1        => more = 3           => matters
    apportion/two.py  => more = 2        => more = 3           =>
    apportion/two.py  => return 0        => return 1           =>
    apportion/two.py  => return n\n      => return n + 1\n     =>
'''


def test_what_is_reached_counts_and_words_do_not():
    def check(file, old, new, matters):
        other = changed(file, *(text.replace("\\n", "\n") for text in (old, new)))
        assert (key(other) != key(SMALL)) == bool(matters)

    check_all(check, lines(CHANGES))


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
