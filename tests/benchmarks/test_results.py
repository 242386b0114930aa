"""Tests of the committed results: their size, their headline figures, and the figures that the documents quote."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.common import HEADLINES, RESULTS, cells_of, quoted, table, write
from benchmarks.evidence.page import details

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "results.md", ROOT / "docs" / "reliability.md"]
SECTIONS = {part.split("\n")[0]: part for page in PAGES for part in page.read_text().split("\n## ")[1:]}
ADVICE = "What to change first?"
WITHOUT_FIGURES = {
    ADVICE, "What is promised", "What the suite leaves out", "What was not tried", "Run it yourself", "On vLLM",
}  # fmt: skip
WANTED = tomllib.loads(HEADLINES.read_text())
FIGURE = re.compile(r"(?<![\w.,])[\d,]*\.\d+")
"""Numbers with a decimal point; whole numbers are mostly settings."""
NUMBER = r"[-+]?\d*\.?\d+"
INTERVAL = re.compile(rf"{NUMBER}%? (?:± {NUMBER}%?|\({NUMBER} to {NUMBER}\)|\[{NUMBER}, {NUMBER}\])")
"""A figure with its interval, in one of the three forms that the tables have."""
TABLES = sorted(RESULTS.glob("*.md"))


def linked(section):
    """Return the tables that a section links."""
    return [RESULTS / name for name in re.findall(r"benchmarks/results/(\w+\.md)\)", section)]


def rows(section):
    """Return the cells of every row of the section's tables, without their heads."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    heads = [i for i, line in enumerate(lines) if line.startswith("| ---")]
    body = [line for i, line in enumerate(lines) if i not in heads and i + 1 not in heads]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def cells(path):
    """Return the cells of all tables of a page."""
    return {c for part in path.read_text().split("\n\n") for row in cells_of(part)[1:] for c in row}


def test_every_table_names_its_machine_commit_and_seeds():
    for path in TABLES:
        last = path.read_text().splitlines()[-1]
        facts = r"(processor|GPU) .+, date \d{4}-\d\d-\d\d, commit [0-9a-f]{7,}\+?, seeds \d+( \d+)*"
        assert re.fullmatch(facts, last), path.name


def test_a_page_has_what_the_documents_quote_and_no_more():
    assert WANTED.keys() <= {path.stem for path in TABLES}
    for name, wanted in WANTED.items():
        text = (RESULTS / f"{name}.md").read_text()
        assert quoted(name, text.rstrip("\n")) == text.rstrip("\n"), name
        parts = [cells_of(part) for part in text.split("\n\n") if part.startswith("|")]
        assert set(wanted["columns"]) <= {column for columns, *_ in parts for column in columns}, name
        named = {" | ".join(row[: i + 1]) for _, *rows in parts for row in rows for i in range(len(row))}
        assert set(wanted.get("rows", ())) <= named, name


@pytest.mark.parametrize("title", [title for title in SECTIONS if title not in WITHOUT_FIGURES])
def test_figures_on_the_page_are_those_of_the_linked_tables(title):
    section, found = SECTIONS[title], linked(SECTIONS[title])
    assert found, "link the table that the figures are from"
    known = {cell for path in found for cell in cells(path)}
    shown = {cell for row in rows(section) for cell in row[1:]}
    assert shown or title == "Where is the rest?"
    assert shown <= known, f"not in the linked tables: {sorted(shown - known)}"
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
    text = "\n".join(path.read_text() for path in found)
    assert set(FIGURE.findall(prose)) <= set(FIGURE.findall(text)), "a figure in the text is in no linked table"


def tables_and_evidence():
    """Return the text of all tables that documents quote and of the pages with the papers' claims."""
    return " ".join([*(cell for name in WANTED for cell in cells(RESULTS / f"{name}.md")), *details().values()])


def test_figures_in_the_readme_and_the_recommendations_are_of_a_table_or_evidence():
    """Figures with an interval must be whole cells, so that none is cut short or joined from two tables."""
    readme = (ROOT / "README.md").read_text().split("\n## Results\n")[1].split("\n## ")[0]
    page, known = (ROOT / "docs" / "index.md").read_text() + SECTIONS[ADVICE], tables_and_evidence()
    for kind, text in ((FIGURE, readme), (FIGURE, page), (INTERVAL, page)):
        quoted = set(kind.findall(text))
        assert quoted and quoted <= set(kind.findall(known)), "quote the cells of the tables"


def test_rows_and_columns_that_nobody_quotes_leave_the_page():
    columns, rows = ["base", "estimator", "rule", "CPU s", *WANTED["gradient_variance"]["columns"]], []
    for row in ["hard | rloo | vip, exact p", "no | such | row"]:
        rows.append([*row.split(" | "), 7, *range(len(WANTED["gradient_variance"]["columns"]))])
    other = table(["a", "b"], [[1, 2]])
    first, kept = quoted("gradient_variance", table(columns, rows) + "\n\n" + other).split("\n\n")
    assert kept == other and "such" not in first and "CPU s" not in first and first.count("\n") == 2
    assert quoted("a page that is not named", first) == first


def test_a_run_outside_the_tree_keeps_its_cells_beside_its_table(tmp_path):
    write("small", "Title", ["what", "n"], [["one", 1]], ["A note."], seeds=(3,), cells={"raw": [0]}, results=tmp_path)
    assert (tmp_path / "small.md").read_text().splitlines()[2:5] == ["| what | n |", "|------|--:|", "| one  | 1 |"]
    content = json.loads((tmp_path / "cells" / "small.json").read_text())
    assert content["rows"] == [["one", 1]] and content["raw"] == [0] and content["facts"]["seeds"] == "3"
