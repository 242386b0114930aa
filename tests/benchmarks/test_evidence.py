"""Tests of the evidence: the page is what the committed values give, and the values are those of today's code."""

import json
import re

import pytest

from benchmarks.evidence import canaries, page
from benchmarks.evidence import cell as cells_module
from benchmarks.evidence.cell import Cell, kept, measure
from benchmarks.evidence.registry import MODULES, cells_by_module
from benchmarks.evidence.rules import Kind, Verdict
from tests.benchmarks.halves import half

CELLS = cells_by_module()
KEPT = json.loads(canaries.KEPT.read_text())


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


@pytest.mark.parametrize("name", canaries.CANARIES)
def test_what_values_depend_on_decides_and_computes_as_it_did(name):
    differ = [*canaries.differences(KEPT[name], canaries.figures(name))]
    assert not differ, (
        f"{name} decides or computes otherwise than when its values were measured, first at {differ[0]}; undo that, or "
        "run python -m benchmarks.evidence --canaries and measure the values again"
    )


def test_every_value_is_of_the_kept_canary_and_of_its_arguments_or_is_said_to_be_older():
    assert KEPT.keys() == canaries.CANARIES.keys() == set(MODULES)
    older = set()
    for module, cells in CELLS.items():
        found = page.committed(module)
        assert found.keys() == cells.keys()
        older |= {name for name, each in found.items() if not page.is_current(name, each, cells[name])}
    assert older == page.OLDER.keys(), "measure again, by python -m benchmarks.evidence --only NAME"


def test_a_canary_differs_by_a_decision_and_not_by_rounding():
    one = {"counts": [8, 8], "p": [0.25]}
    assert not [*canaries.differences(one, {"counts": [8, 8], "p": [0.25 + 1e-9]})]
    for other in (
        {"counts": [7, 9], "p": [0.25]},
        {"counts": [8, 8], "p": [0.2501]},
        {"counts": [8], "p": [0.25]},
        None,
    ):
        assert [*canaries.differences(one, other)]


def test_no_value_is_of_a_tree_with_changes():
    values = [each for module in MODULES for each in page.committed(module).values()]
    assert all(each["facts"]["processor"] and page.is_of_a_commit(each) for each in values)
    assert not page.is_of_a_commit({"facts": {"commit": "unknown"}})


def test_every_cell_is_read_by_a_claim_or_is_a_sweep():
    read = {name for _, found in page.findings().values() for name in found.cells}
    assert {name for name in page.all_committed() if name not in read and not name.endswith("-100")} == set()


def test_what_a_paper_measured_and_cannot_be_told_is_a_quarter_at_most_and_says_why():
    found = [each for each in page.findings().values() if each[0].kind is Kind.PAPER]
    open_ = [claim for claim, own in found if own.verdict is Verdict.OPEN]
    assert len(open_) <= len(found) / 4 and len(page.findings()) <= 80
    assert all(claim.open for claim in open_), [claim.id for claim in open_ if not claim.open]


def test_what_is_measured_is_kept_until_its_canary_arguments_or_seeds_change(folder, monkeypatch):
    cell = Cell(half)
    measure("hora.b", cell)
    found = kept("hora.b", cell)
    assert found["values"] == {"area": 0.5} and found["facts"]["seeds"] == [0] and found["facts"]["cpu_seconds"] >= 0
    assert kept("hora.b", Cell(half, minutes=5)) is not None
    assert kept("hora.b", Cell(half, seeds=(1,))) is None
    monkeypatch.setattr(cells_module, "canary_of", lambda module: [1.0])
    assert kept("hora.b", cell) is None
