"""Tests of the evidence: the page is what the committed values give, and what is measured is kept."""

import json
import re

import pytest

from benchmarks.evidence import age, page
from benchmarks.evidence import cell as cells_module
from benchmarks.evidence.cell import Cell, kept, measure
from benchmarks.evidence.registry import MODULES, cells_by_module
from tests.benchmarks.halves import half

CELLS = cells_by_module()
OF_CHANGED_TREES = 27
"""Values measured before this was refused. The page names them."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder for what is measured."""
    monkeypatch.setattr(cells_module, "FOLDER", tmp_path)
    return tmp_path


def test_the_page_is_written_from_the_committed_values():
    assert page.PAGE.read_text() == page.overview(), "run python -m benchmarks.evidence --page"


def test_every_number_on_the_page_leads_to_its_details():
    links = re.findall(r"\(evidence/(\w+)\.md#(\w+)-(\d+)\)", page.PAGE.read_text())
    details = page.details()
    assert len(links) == len(page.findings())
    for name, same, number in links:
        assert name == same
        assert f'\n<a id="{name}-{number}"></a>\n\n## {number}. ' in details[name]


def test_committed_values_are_of_the_code_that_measures_them_or_are_said_to_be_older():
    """So a measurement that was changed is made again, or the page says what changed since."""
    for module, cells in CELLS.items():
        found = page.committed(module)
        assert found.keys() <= cells.keys()
        unknown = [name for name, each in found.items() if age.state_of(name, each, cells[name]) is None]
        assert not unknown, f"measure again, or run python -m benchmarks.evidence --age: {unknown}"


def test_no_new_value_is_of_a_tree_with_changes():
    values = [each for module in MODULES for each in page.committed(module).values()]
    assert all(each["facts"]["processor"] and re.match(r"[0-9a-f]{7}", each["facts"]["commit"]) for each in values)
    assert sum(not page.is_of_a_commit(each) for each in values) <= OF_CHANGED_TREES
    assert not page.is_of_a_commit({"facts": {"commit": "unknown"}})


def test_every_cell_is_read_by_a_claim_or_is_a_sweep():
    read = {name for _, found in page.findings().values() for name in found.cells}
    unread = {name for name in page.all_committed() if name not in read and not name.endswith("-100")}
    assert unread == {"vip_learning.rates"}


def test_what_is_measured_is_kept_until_its_code_or_arguments_change(folder):
    cell = Cell(half)
    measure("a.b", cell)
    found = kept("a.b", cell)
    assert found["values"] == {"area": 0.5} and found["facts"]["seeds"] == [0] and found["facts"]["cpu_seconds"] >= 0
    assert kept("a.b", Cell(half, minutes=5)) is not None
    (folder / "a.b.json").write_text(json.dumps({**found, "key": "of other code"}))
    assert kept("a.b", cell) is None
