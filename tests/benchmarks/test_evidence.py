"""Tests of the evidence: the page is what the committed values give, and measuring survives faults in pairs."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common import ROOT
from benchmarks.evidence import age, page
from benchmarks.evidence import cell as cells_module
from benchmarks.evidence.__main__ import main
from benchmarks.evidence.cell import Cell, kept, measure, run
from benchmarks.evidence.registry import MODULES, cells_by_module
from tests.benchmarks.halves import half

CELLS = cells_by_module()
OF_CHANGED_TREES = 27
"""Values measured before this was refused. The page names them."""
VALUES = '{"values": {"area": 0.5}}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder for what is measured."""
    monkeypatch.setattr(cells_module, "FOLDER", tmp_path)
    return tmp_path


def command(folder, body):
    """Return a command that runs ``body``, which may ``keep()`` the values of the cell ``name``."""
    script = folder / "child.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks.evidence import cell\n"
        f"cell.FOLDER = pathlib.Path({str(folder)!r})\n"
        "cell.end_with_parent()\n"
        "name = sys.argv[1]\n"
        "from tests.benchmarks.halves import half\n"
        "def keep(): cell.measure(name, cell.Cell(half))\n" + body,
        encoding="utf-8",
    )
    return [sys.executable, str(script)]


def test_the_page_is_written_from_the_committed_values():
    assert page.PAGE.read_text(encoding="utf-8") == page.overview(), "run python -m benchmarks.evidence --page"


def test_every_number_on_the_page_leads_to_its_details():
    links = re.findall(r"\(evidence/(\w+)\.md#(\w+)-(\d+)\)", page.PAGE.read_text(encoding="utf-8"))
    details = page.details()
    assert len(links) == len(page.findings())
    for name, same, number in links:
        assert name == same
        assert f'\n<a id="{name}-{number}"></a>\n\n## {number}. ' in details[name]


def test_a_row_leads_to_its_rule_its_values_their_age_and_their_command():
    text = page.details()["vip"]
    own = text.split('<a id="vip-1"></a>')[1].split('<a id="vip-2"></a>')[0]
    assert "central" in own and "fewer than" not in own and "`vip_learning.gp_8_rloo`" in own
    assert re.search(r"\| Pass@32 .*-0\.5 ± 1\.2, 10 seeds \| +above 0 \| +too weak \|", own)
    assert "has fewer than 10 seeds, so it is not told" in text.split('<a id="vip-26"></a>')[1]
    assert re.search(r"\n\| vip_learning\.gp_8_rloo \| \w+ \| 2026-.* \| .*Xeon.* \| .* \| \d+ definitions: ", text)
    assert "--only NAME --fresh" in text and "| current |" in page.details()["vip"]


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    for name, text in (page.details() | {"evidence": page.overview()}).items():
        width = 0
        for line in text.splitlines():
            cells = line.count("|") if line.startswith("|") else 0
            assert not (cells and width) or cells == width, f"{name}: {line[:80]}"
            width = cells


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


def test_committed_values_are_small():
    sizes = {path.stem: path.stat().st_size for path in page.MEASURED.glob("*.json")}
    assert sizes.keys() <= CELLS.keys()
    assert sum(sizes.values()) <= 256_000 and max(sizes.values(), default=0) <= 50_000


def test_figures_are_rounded_to_few_digits_and_whole_numbers_are_kept():
    assert page._rounded({"a": [0.123456789, 3], "b": None, "c": 123456.7}) == {
        "a": [0.12346, 3],
        "b": None,
        "c": 123460.0,
    }


def test_what_is_measured_is_kept_until_its_code_or_arguments_change(folder):
    cell = Cell(half)
    measure("a.b", cell)
    found = kept("a.b", cell)
    assert found["values"] == {"area": 0.5} and found["facts"]["seeds"] == [0] and found["facts"]["cpu_seconds"] >= 0
    assert kept("a.b", Cell(half, minutes=5)) is not None
    (folder / "a.b.json").write_text(json.dumps({**found, "key": "of other code"}))
    assert kept("a.b", cell) is None


def test_a_damaged_file_is_measured_again(folder):
    for content in ("", "{", "[]", '{"values": {}}', VALUES[:-3], "\x00" * 9):
        (folder / "a.b.json").write_text(content)
        assert kept("a.b", Cell(half)) is None, content


@pytest.mark.slow
def test_a_cell_that_fails_and_one_that_is_silent_hold_up_no_other(folder, capsys):
    body = "{'a.fails': lambda: 1 / 0, 'a.hangs': lambda: time.sleep(600)}.get(name, keep)()"
    cells = {name: Cell(half) for name in ("a.fails", "a.hangs", "a.good", "a.also")}
    impatient = cells | {"a.hangs": Cell(half, minutes=0.01)}
    started = time.monotonic()
    assert sorted(run(impatient, 2, command(folder, body))) == ["a.fails", "a.hangs"]
    assert time.monotonic() - started < 200
    said = capsys.readouterr().out
    assert "a.fails: failed with exit code 1, see" in said and "a.hangs: not finished after 6 s, see" in said
    assert "ZeroDivisionError" in (folder / "a.fails.log").read_text()
    assert {name for name in cells if kept(name, cells[name])} == {"a.good", "a.also"}
    (folder / "a.good.json").write_text("{")
    assert run(cells, 2, command(folder, "keep()")) == []
    assert "1 of 4 cells are measured" in capsys.readouterr().out


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_ends_the_run_at_once(folder):
    """The cell that runs beside it is stopped, and no other begins."""
    (folder / "a.full.log").mkdir()
    started = time.monotonic()
    with pytest.raises(IsADirectoryError):
        run({f"a.{name}": Cell(half) for name in ("full", "one", "two")}, 2, command(folder, "time.sleep(600)"))
    assert time.monotonic() - started < 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_no_process_and_keeps_what_is_finished(folder, kind):
    wait = "pathlib.Path(f'{cell.FOLDER}/{name}.pid').write_text(str(os.getpid())), time.sleep(600)"
    body = f"keep() if name == 'a.good' else ({wait})"
    parent = folder / "parent.py"
    parent.write_text(
        f"import pathlib, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks.evidence import cell\nfrom tests.benchmarks.halves import half\n"
        f"cell.FOLDER = pathlib.Path({str(folder)!r})\n"
        "cells = {'a.good': cell.Cell(half, 2), 'a.one': cell.Cell(half), 'a.two': cell.Cell(half)}\n"
        f"cell.run(cells, 3, {command(folder, body)!r})\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wanted = [folder / "a.good.json", folder / "a.one.pid", folder / "a.two.pid"]
        wait_until(lambda: all(path.exists() and path.stat().st_size for path in wanted))
        process.send_signal(kind)
        assert process.wait(20) != 0
    for path in wanted[1:]:
        wait_until(lambda path=path: not alive(int(path.read_text())))
    assert kept("a.good", Cell(half)) is not None and kept("a.one", Cell(half)) is None


def alive(number):
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


def wait_until(true, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def test_unknown_cells_are_refused_with_a_remedy(monkeypatch, capsys):
    for option in ("--cell", "--only"):
        monkeypatch.setattr(sys, "argv", ["evidence", option, "nothing"])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert "nothing; --list shows them" in capsys.readouterr().err
