"""Tests of what a value belongs to: the code that its cell reaches, and not its words or its place."""

import sys
from functools import partial

import pytest

from benchmarks.evidence import reach
from benchmarks.evidence.cell import Cell, code_now
from benchmarks.evidence.registry import cell_named
from tests.benchmarks.halves import half

VIP = "apportion/allocators/vip.py"
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


def test_a_file_may_move():
    moved = {"benchmarks/one.py": SMALL["benchmarks/one.py"], "apportion/room/__init__.py": SMALL["apportion/two.py"]}
    moved["benchmarks/one.py"] = (
        moved["benchmarks/one.py"]
        .replace("from apportion.two", "from apportion.room")
        .replace("from apportion import two", "import apportion.room as two")
    )
    assert key(moved) == key(SMALL)


def test_another_rule_of_the_registry_is_reached_by_its_name():
    assert key(changed("apportion/two.py", "more = 2", "more = 3"), "second") != key(SMALL, "second")


def with_vip(old, new):
    """Return the sources with other text in VIP's file."""
    sources = dict(code_now().sources)
    assert sources[VIP].count(old) == 1
    return reach.Code(sources | {VIP: sources[VIP].replace(old, new)})


def test_vips_value_is_outdated_by_its_formula_alone():
    cell = cell_named("vip_learning.gp_8_rloo")
    before = cell.reached()
    formula = with_vip("else 1 / (m * (m - 1))", "else 1 / (m * m)")
    assert [name for name, own in cell.reached(formula).items() if own != before[name]] == ["variance_drops"]
    words = with_vip("A prompt with p = 0 or p = 1 has variance 0.", "Certain prompts have none.")
    assert cell.reached(words) == before
    assert cell.reached(rooms=("benchmarks", *reach.FORMULAS)).keys() < before.keys()


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


def test_arguments_belong_to_the_key():
    assert len({Cell(half).key, Cell(partial(half, 2)).key, Cell(partial(half, n=2)).key}) == 3
