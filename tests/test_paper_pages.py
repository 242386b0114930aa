"""Tests that the pages about the papers say what the evidence says."""

import re
from pathlib import Path

import pytest
import yaml

from apportion.allocators import Allocator
from apportion.config import build
from benchmarks.evidence.page import details, findings
from tests.cases import lines

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "papers").glob("*.md"))
NAMES = [page.stem for page in PAGES]
SECTIONS = """
    In one paragraph
    What it does
    Use it
    When to use it, and when not
    What it assumes
    What we changed, and why
    What the evidence says
    Cost
    Reference
"""
ROW = re.compile(r"^\| \[[^\]]+\]\(\.\./(evidence/\w+\.md#[\w-]+)\) \| (.+) \| (.+) \| \*\*(.+)\*\* \|$", re.MULTILINE)
NUMBER = r"[-+]?(?:\d[\d,]*)?\.?\d+[%x]?"
INTERVAL = re.compile(rf"{NUMBER} (?:± {NUMBER}|\[{NUMBER}, {NUMBER}\]|\({NUMBER} to {NUMBER}\))")


def read(path):
    return path.read_text()


def verdicts():
    """Return (the paper's figure, ours, the verdict) of each claim, by the address of its details."""
    return {
        f"evidence/{claim.chapter}.md#{claim.id}": (claim.printed, found.ours, str(found.verdict))
        for claim, found in findings().values()
    }


VERDICTS = verdicts()


def is_part(quoted, whole):
    """Return whether ``quoted`` is a part of ``whole`` that cuts no figure and leaves out no interval."""
    return bool(re.search(rf"(?<![\w.±+-])(?<!± ){re.escape(quoted)}(?![\w%]|\.\d|,\d| [±\[(])", whole))


def test_a_figure_is_quoted_with_its_interval():
    whole = "area +0.1 ± 0.2, pass@32 -0.3 ± 0.4 in all runs"
    assert is_part("area +0.1 ± 0.2", whole) and is_part("pass@32 -0.3 ± 0.4", whole)
    for cut in ("area +0.1", "area +0.1 ± 0", "0.1 ± 0.2", "0.4", "area +0.1 ± 0.3"):
        assert not is_part(cut, whole), cut


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_has_all_sections(page):
    assert re.findall(r"^## (.+)$", read(page), re.MULTILINE) == [section for (section,) in lines(SECTIONS)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_figures_and_verdicts_are_those_of_the_evidence(page):
    table = read(page).partition("## What the evidence says")[2].partition("## Cost")[0]
    rows = ROW.findall(table)
    assert 5 <= len(rows) == len([line for line in table.splitlines() if line.startswith("| [")])
    for address, paper, ours, verdict in rows:
        its_paper, its_ours, its_verdict = VERDICTS[address]
        assert verdict == its_verdict, f"{address} has the verdict {its_verdict} now"
        assert is_part(ours, its_ours), f"{address} says {its_ours!r} now, and the page {ours!r}"
        assert is_part(paper, its_paper), f"{address} gives the paper's figure as {its_paper!r}, and the page {paper!r}"


def test_every_interval_of_a_page_stands_in_evidence_or_results():
    results = ROOT / "benchmarks" / "results"
    texts = [*map(read, (DOCS / "results.md", DOCS / "allocators.md", *results.glob("*.md"))), *details().values()]
    known = {figure for text in texts for figure in INTERVAL.findall(re.sub(r"\s+", " ", text))}
    for page in PAGES:
        quoted = INTERVAL.findall(re.sub(r"\s+", " ", read(page)))
        assert quoted and not set(quoted) - known, page.name


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_configuration_of_a_page_builds_its_allocator(page):
    (block,) = re.findall(r"^```yaml\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL)
    assert build(Allocator, yaml.safe_load(block)["allocator"]).name == page.stem


def glossary():
    """Return (term, definition) of each entry of the glossary."""
    entries = re.findall(r"^(\S.*)\n:   (.+(?:\n    .+)*)", read(DOCS / "glossary.md"), re.MULTILINE)
    return [(term, re.sub(r"\s+", " ", definition)) for term, definition in entries]


def test_the_glossary_is_in_alphabetical_order():
    terms = [term.casefold() for term, _ in glossary()]
    assert terms == sorted(set(terms)) and len(terms) >= 50


def test_the_first_sentence_of_an_entry_fits_a_tooltip():
    for term, definition in glossary():
        sentence = re.split(r"(?<=\.) (?=[A-Z`])", definition)[0]
        assert sentence.endswith(".") and "](" not in sentence and len(sentence.split()) <= 25, term
