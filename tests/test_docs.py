"""Tests that the documents' examples run and that their links lead somewhere."""

import gzip
import json
import re
import shlex
from pathlib import Path
from string import Template

import pytest

from benchmarks.evidence.registry import CHAPTERS
from tests.warm import forked

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "examples" / "data" / "grpo_run.jsonl.gz"
ELSEWHERE = {
    "recorded_layouts": "test_first_run",
    "score_rules": "test_score_rules",
    "scored_rules": "test_score_rules",
}
"""Examples that other tests run."""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in ELSEWHERE]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKDOWN = [*PAGES, ROOT / "CONTRIBUTING.md"]
MARKED = re.compile(r"^<!-- not run: [^\n]+ -->\n+", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text):
    """Return the commands of a shell block, each as its words. Comments and an ellipsis are left out."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [[word for word in words if word != "..."] for words in found if words]


def run(words, folder, **environment):
    """Run a command of a page in ``folder``, and return what it prints."""
    assert words[0] in ("apportion", "python"), words
    done = forked(["-m", *words] if words[0] == "apportion" else words[1:], folder, **environment)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr}"
    return done.stdout


def run_block(text, folder):
    """Run the commands of a shell block, and return what they print."""
    said, environment = "", {}
    for words in commands(text):
        if words[0] == "export":
            known = {"PWD": str(folder), "PYTHONPATH": ""} | environment
            environment |= {name: Template(value).safe_substitute(known) for name, _, value in map(parted, words[1:])}
        else:
            said += run(words, folder, **environment)
    return said


def parted(word):
    return word.partition("=")


def few_recorded(folder, every=5):
    """Copy each fifth problem of the recorded run into ``folder``, and return the file."""
    with gzip.open(RECORDED, "rt") as whole, gzip.open(folder / RECORDED.name, "wt") as few:
        few.writelines(line for place, line in enumerate(whole) if place % every == 0)
    return folder / RECORDED.name


def blocks(page):
    """Return the Python blocks of ``page`` without those that follow a comment ``<!-- not run: reason -->``."""
    text = page.read_text()
    marked = {match.end() for match in MARKED.finditer(text)}
    return [match[1] for match in BLOCK.finditer(text) if match.start() not in marked]


BLOCKS = [(f"{page.stem}-{i}", code) for page in PAGES for i, code in enumerate(blocks(page), 1)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_run(example, tmp_path):
    assert run(["python", example], tmp_path).strip()


def test_python_blocks_run(tmp_path):
    """Each block has its own names."""
    runner = (
        "import json, sys\n"
        "for title, code in json.loads(sys.argv[1]):\n"
        "    print(title, flush=True)\n"
        "    exec(compile(code, title, 'exec'), {'__name__': '__main__'})\n"
    )
    said = run(["python", "-c", runner, json.dumps(BLOCKS)], tmp_path)
    assert said.count("\n") >= len(BLOCKS) >= 10


NOTEBOOK = ROOT / "examples" / "first_five_minutes.ipynb"


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    """In one namespace, as a notebook has it, on a fifth of the run. What stands last in a cell is shown."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "strip the outputs"
    runner = (
        "import ast, json, sys\n"
        "names = {'__name__': '__main__'}\n"
        "for number, code in enumerate(json.loads(sys.argv[1])):\n"
        "    tree = ast.parse(code)\n"
        "    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
        "    exec(compile(tree, f'cell {number}', 'exec'), names)\n"
        "    if last:\n"
        "        shown = eval(compile(ast.Expression(last.value), f'cell {number}', 'eval'), names)\n"
        "        print(getattr(shown, '_repr_html_', shown.__repr__ if shown is not None else str)())\n"
    )
    (tmp_path / "data").mkdir()
    few = few_recorded(tmp_path / "data")
    said = run(["python", "-c", runner, json.dumps(["".join(cell["source"]) for cell in cells])], tmp_path)
    assert re.findall(r"<table><caption>(\w+)", said) == ["Diagnosis", "Batch", "Plan"]
    assert re.search(r"vip: variance 0\.\d+, signal 1\.", said) and "array([ 7, 10,  7])" in said
    groups = int(said.partition(" groups")[0].replace(",", ""))
    with gzip.open(few, "rt") as file:
        assert groups == sum(len(json.loads(line)["correct_of_8"]) for line in file)
    assert "a GRPO run of 64,000 groups" in NOTEBOOK.read_text()


def test_a_block_is_left_out_only_with_a_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\none\n```\n\n<!-- not run: needs a GPU -->\n```python\ntwo\n```\n\n"
        "<!-- not run: -->\n```python\nthree\n```\n\n<!-- a remark -->\n\n```python\nfour\n```\n"
    )
    assert blocks(page) == ["one\n", "three\n", "four\n"]


def test_links_lead_somewhere():
    made = {ROOT / "docs" / "evidence" / f"{chapter}.md" for chapter in CHAPTERS}  # by the site
    for page in MARKDOWN:
        targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
        missing = [each for each in targets if not ((to := (page.parent / each).resolve()).exists() or to in made)]
        assert not missing, page.name


def torn_tables(text):
    """Return the first line of each table of ``text`` that has no head, or rows of another number of cells."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    tables = [block.strip().splitlines() for block in re.findall(r"(?:^\|.*\n?)+", prose, re.MULTILINE)]
    return [
        rows[0]
        for rows in tables
        if not re.fullmatch(r"[|: -]*-[|: -]*", rows[min(1, len(rows) - 1)])
        or len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) > 1
    ]


def test_tables_are_whole():
    head, rows = "| a | b |\n| --- | --- |\n", "| 1 | 2 |\n| 3 | 4 |\n"
    assert torn_tables(head + rows) == []
    assert torn_tables(head + "\n" + rows) == ["| 1 | 2 |"]
    assert torn_tables(head + "| 1 |\n") == ["| a | b |"]
    for page in [*MARKDOWN, ROOT / "CHANGELOG.md", *(ROOT / "benchmarks" / "results").glob("*.md")]:
        assert not torn_tables(page.read_text()), page
