"""The list of ``make engines``, and the table that it writes."""

import re
import tomllib

import pytest

from tests.engines.run import LIST, PAGE, TREE, counted, with_row

COMMON, *ENGINES = tomllib.loads(LIST.read_text()).values()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["name"])
def test_the_table_has_what_the_list_says_and_an_engine_that_fails_loses_its_yes(engine):
    page = PAGE.read_text()
    result = re.search(rf"^\| \[{engine['name']}\].*?\| .*? \| (.*?) \|", page, re.MULTILINE)[1]
    assert with_row(page, engine, result) == page
    failed = with_row(page, engine, "1 May 2026: 1 failed, 3 passed")
    (row,) = set(failed.splitlines()) - set(page.splitlines())
    assert "1 failed" in row and "not tested" in row and "yes" not in row


def test_what_a_library_writes_after_the_tests_hides_no_result():
    assert counted("== test session starts ==\n=== 19 passed, 2 skipped, 6 warnings in 3.57s ===\nleaked 4!\n") == (
        "19 passed, 2 skipped"
    )
    assert counted("ImportError in a file\n") == ""


def test_every_package_has_one_version():
    known = {line.partition("==")[0] for line in (TREE / "constraints.txt").read_text().splitlines()}
    named = [name for part in (COMMON, *ENGINES) for name in part["packages"]]
    assert not [name for name in named if "==" not in name and name not in known]
