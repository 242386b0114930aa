"""The page that takes a new user through a run of their own: its commands, in its order, print what it quotes."""

import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from apportion.diagnosis.code_change import BASELINE
from tests.test_docs import ROOT, run_block

PAGE = ROOT / "docs" / "diagnose.md"
BLOCK = re.compile(
    r"^(<!-- not run: [^\n]+ -->\n)?```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Step:
    """A shell block of a page: its commands, and the output that the page quotes; "..." stands for other lines."""

    command: str
    quoted: str

    @property
    def needs_verl(self):
        return "apportion.verl" in self.command

    @property
    def title(self):
        """The commands as one line."""
        return " && ".join(re.sub(r"\\\n\s*", "", self.command).strip().splitlines())


def steps(page):
    """Return the shell blocks of ``page``, without those that are marked as not run."""
    found = BLOCK.findall(page.read_text())
    return [Step(command, quoted) for marked, command, quoted in found if not marked]


STEPS = steps(PAGE)


def missing(quoted, printed):
    """Return the first quoted line that is not printed after the one before it; "..." stands for any lines."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    return next((line for line in quoted.splitlines() if line.strip() != "..." and line not in lines), None)


def check(step, folder):
    assert step.quoted.strip(), f"{step.title} has no output"
    if not step.needs_verl or find_spec("verl"):
        left_out = missing(step.quoted, run_block(step.command, folder))
        assert left_out is None, f"{step.title} does not print {left_out!r}"


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_quotes(tmp_path):
    pytest.importorskip("pyarrow")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for step in STEPS:
        check(step, tmp_path)
    assert (tmp_path / "before.html").exists() and (tmp_path / "both.html").exists()


def test_the_page_has_a_step_for_each_layout():
    titles = "\n".join(step.title for step in STEPS)
    wanted = ["diagnose trl_run", "diagnose verl_run", "diagnose my_run.jsonl", "replay", "report", "apportion.verl"]
    assert not [command for command in wanted if command not in titles]


def test_the_code_of_the_page_is_what_the_diagnosis_prints():
    """The trainer's arguments and verl's overrides on the page are those of the first advice in the quoted output."""
    text = PAGE.read_text()
    assert text.count(BASELINE.trl) == 1 and f"        {BASELINE.trainer}\n" in text
    assert text.count(f"python -m apportion.verl {BASELINE.verl}") == 3


def test_marked_blocks_are_left_out(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: reason -->\n```sh\none\n```\n\n```sh\ntwo \\\n    more\n```\n\n```text\nout\n```\n")
    (found,) = steps(page)
    assert found == Step("two \\\n    more\n", "out\n") and found.title == "two more"


def test_a_changed_line_is_noticed():
    assert missing("a\n...\nc\n", "a\nb\nc") is None
    assert missing("a\nc\nb\n", "a\nb\nc") == "b"
