"""Tests that the documents' examples run and that their links lead somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evidence.registry import CHAPTERS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKDOWN = [*PAGES, ROOT / "CONTRIBUTING.md"]
MARKED = re.compile(r"^<!-- not run: [^\n]+ -->\n+", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(*arguments, **settings):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, **settings
    )


def blocks(page):
    """Return the Python blocks of ``page`` without those that follow a comment ``<!-- not run: reason -->``."""
    text = page.read_text(encoding="utf-8")
    marked = {match.end() for match in MARKED.finditer(text)}
    return [match[1] for match in BLOCK.finditer(text) if match.start() not in marked]


BLOCKS = [(f"{page.stem}-{i}", code) for page in PAGES for i, code in enumerate(blocks(page), 1)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_run(example, tmp_path):
    done = run(str(example), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_python_blocks_run(tmp_path):
    """In one process, because each would import torch again. Each block has its own names."""
    runner = (
        "import json, sys\n"
        "for title, code in json.load(sys.stdin):\n"
        "    print(title, flush=True)\n"
        "    exec(compile(code, title, 'exec'), {'__name__': '__main__'})\n"
    )
    done = run("-c", runner, cwd=tmp_path, input=json.dumps(BLOCKS))
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr}"
    assert done.stdout.count("\n") >= len(BLOCKS) > 10


NOTEBOOK = ROOT / "examples" / "first_five_minutes.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom():
    """In one namespace, as a notebook has it. What stands last in a cell is shown as a notebook would show it."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "strip the outputs"
    runner = (
        "import ast, json, sys\n"
        "names = {'__name__': '__main__'}\n"
        "for number, code in enumerate(json.load(sys.stdin)):\n"
        "    tree = ast.parse(code)\n"
        "    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
        "    exec(compile(tree, f'cell {number}', 'exec'), names)\n"
        "    if last:\n"
        "        shown = eval(compile(ast.Expression(last.value), f'cell {number}', 'eval'), names)\n"
        "        print(getattr(shown, '_repr_html_', shown.__repr__ if shown is not None else str)())\n"
    )
    done = run("-c", runner, cwd=NOTEBOOK.parent, input=json.dumps(["".join(cell["source"]) for cell in cells]))
    assert done.returncode == 0, done.stderr
    tables = re.findall(r"<table><caption>(\w+)", done.stdout)
    assert tables == ["Diagnosis", "Batch", "Plan"] and "64,000 groups" in done.stdout
    assert "vip: variance 0.7" in done.stdout and "array([ 7, 10,  7])" in done.stdout


def test_a_block_is_left_out_only_with_a_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\none\n```\n\n<!-- not run: needs a GPU -->\n```python\ntwo\n```\n\n"
        "<!-- not run: -->\n```python\nthree\n```\n\n<!-- a remark -->\n\n```python\nfour\n```\n"
    )
    assert blocks(page) == ["one\n", "three\n", "four\n"]


@pytest.mark.parametrize("page", MARKDOWN, ids=[path.name for path in MARKDOWN])
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    made = {ROOT / "docs" / "evidence" / f"{chapter}.md" for chapter in CHAPTERS}  # by the site
    missing = [each for each in targets if not ((to := (page.parent / each).resolve()).exists() or to in made)]
    assert not missing
