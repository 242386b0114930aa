"""Tests of the committed results: their size, their headline figures, and the figures that the documents quote."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.common import HEADLINES, RESULTS, headlines, spread, table, write
from benchmarks.evidence.page import details

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "results.md", ROOT / "docs" / "reliability.md"]
SECTIONS = {part.split("\n")[0]: part for page in PAGES for part in page.read_text(encoding="utf-8").split("\n## ")[1:]}
WITHOUT_FIGURES = {
    "What is promised",
    "What the suite leaves out",
    "What was not tried",
    "Run it yourself",
}
WANTED = tomllib.loads(HEADLINES.read_text(encoding="utf-8"))
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


def test_results_are_small():
    files = list(RESULTS.iterdir())
    assert {path.suffix for path in files} == {".md", ".json"}
    assert sum(path.stat().st_size for path in files) <= 485_000
    assert max(path.stat().st_size for path in files if path.suffix == ".json") <= 5_000


def test_every_table_names_its_machine_commit_and_seeds():
    for path in TABLES:
        last = path.read_text(encoding="utf-8").splitlines()[-1]
        facts = r"processor .+, date \d{4}-\d\d-\d\d, commit [0-9a-f]{7}\+?, seeds \d+( \d+)*"
        assert re.fullmatch(facts, last), path.name


def test_headline_figures_are_those_of_the_table():
    for name, wanted in WANTED.items():
        text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        assert kept == headlines(text, wanted), name


def test_only_tables_that_are_quoted_have_headline_figures():
    assert {path.stem for path in RESULTS.glob("*.json")} == WANTED.keys() <= {path.stem for path in TABLES}


@pytest.mark.parametrize("title", [title for title in SECTIONS if title not in WITHOUT_FIGURES])
def test_figures_on_the_page_are_those_of_the_linked_tables(title):
    section, found = SECTIONS[title], linked(SECTIONS[title])
    assert found, "link the table that the figures are from"
    files = [json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) for path in found]
    known = {cell for content in files for row in content.values() for cell in row.values()}
    quoted = {cell for row in rows(section) for cell in row[1:]}
    assert quoted or title == "Where is the rest?"
    assert quoted <= known, f"not in the headline figures: {sorted(quoted - known)}"
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in found)
    assert set(FIGURE.findall(prose)) <= set(FIGURE.findall(text)), "a figure in the text is in no linked table"


def headlines_and_evidence():
    """Return the text of all headline figures and of the pages with the papers' claims."""
    return " ".join([*(path.read_text(encoding="utf-8") for path in RESULTS.glob("*.json")), *details().values()])


def test_figures_in_the_readme_are_headline_figures_or_evidence():
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Results\n")[1].split("\n## ")[0]
    quoted = set(FIGURE.findall(section))
    assert len(quoted) > 40 and quoted <= set(FIGURE.findall(headlines_and_evidence())), "quote the cells of the tables"


def test_figures_in_the_recommendations_are_headline_figures_or_evidence():
    """Figures with an interval must be whole cells, so that none is cut short or joined from two tables."""
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    known = headlines_and_evidence()
    quoted = set(INTERVAL.findall(page))
    assert quoted and quoted <= set(INTERVAL.findall(known)), "quote the cells of the tables"
    assert set(FIGURE.findall(page)) <= set(FIGURE.findall(known)), "quote the cells of the tables"


def test_a_cell_is_found_in_the_first_table_that_has_it():
    first, second = table(["p", "q", "r"], [["a", "b", 1], ["a", "c", 2]]), table(["p", "r"], [["a", 3], ["d", 4]])
    text = f"{first}\n\n{second}"
    assert headlines(text, {"a | c": ["r"], "a": ["r"], "d": ["r"]}) == {
        "a | c": {"r": "2"},
        "a": {"r": "1"},
        "d": {"r": "4"},
    }
    with pytest.raises(ValueError, match=r"no table has a cell for row 'd' and column 'q'; correct headlines\.toml"):
        headlines(text, {"d": ["q"]})


def test_a_run_outside_the_tree_keeps_its_cells_beside_its_table(tmp_path):
    write("small", "Title", ["what", "n"], [["one", 1]], ["A note."], seeds=(3,), cells={"raw": [0]}, results=tmp_path)
    assert (tmp_path / "small.md").read_text().splitlines()[2:5] == ["| what | n |", "|------|--:|", "| one  | 1 |"]
    content = json.loads((tmp_path / "cells" / "small.json").read_text())
    assert content["rows"] == [["one", 1]] and content["raw"] == [0] and content["facts"]["seeds"] == "3"


def test_the_interval_is_students():
    assert spread([1.0, 2.0, 3.0], ".2f") == "2.00 ± 2.48"  # 4.303 / sqrt(3)
    assert spread([1.0], ".1f") == "1.0"


def test_rows_must_be_as_long_as_the_head():
    with pytest.raises(ValueError, match="every row needs 2 cells, one a column, got 1; fill it with '-'"):
        table(["a", "b"], [["c"]])
