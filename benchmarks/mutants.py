"""Break the package in one random place at a time and run the tests of that room: an unnoticed mutant is a gap.

A place is drawn among conditions, comparisons, sums, products, ``and``s, raises and returns of a room, and among the
whole numbers inside its functions. Messages, annotations and decorators are left alone. The change is made in a copy of
the committed tree. A mutant is noticed if a test fails, or if the tests do not end in time.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT, options, write

TESTS: dict[str, Sequence[str]] = {
    "lab": ("tests/lab",),
    "trl": ("tests/trl",),
    "verl": ("tests/verl",),
    "tinker": ("tests/tinker",),
    "cli": ("tests/test_cli.py", "tests/diagnosis", "tests/replay", "tests/records", "tests/simulation", "tests/vote"),
    "inspect_ai.py": ("tests/test_inspect_ai.py",),
    "described.py": ("tests/test_config.py", "tests/contract"),
    "user_functions.py": ("tests/answers", "tests/verifiers", "tests/test_config.py"),
    "presets.py": ("tests/lab/test_presets.py", "tests/test_solve.py"),
    "allocators": ("tests/allocators", "tests/contract", "tests/test_graded.py"),
    "advantages": ("tests/advantages", "tests/contract", "tests/test_graded.py"),
    "predictors": ("tests/predictors", "tests/contract", "tests/test_graded.py"),
    "selection": ("tests/selection", "tests/contract"),
    "stopping": ("tests/stopping", "tests/contract"),
    "baselines": ("tests/test_baselines.py", "tests/contract"),
}
"""Tests of a room, if they are more than the folder or file of its name."""

LEFT_OUT = {"__init__.py", "__main__.py", "inspect_ai.py"}
"""No place to break, or tests that need an environment of their own."""

KEPT = ROOT / "runs" / "benchmarks" / "mutants"

SECONDS = 900.0
"""Bound on the tests of one mutant. One that hangs them is noticed."""

PAIRS = (
    *((ast.Add, ast.Sub), (ast.And, ast.Or), (ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE)),
    *((ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
)
OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    **dict(PAIRS),
    **{other: one for one, other in PAIRS},
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the characters ``start`` to ``end`` of ``file`` become ``new``."""

    room: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def place(self):
        return f"{self.file}:{self.line}"

    def broken(self, source):
        """Return the source of the file with this change."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def changed(node):
    """Return what ``node`` becomes, or None if it is no place to break."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPPOSITE and not isinstance(left, ast.Constant):
            return ast.BinOp(left, OPPOSITE[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(OPPOSITE[type(op)](), values)
        case ast.Compare(left=left, ops=[op], comparators=others):
            return ast.Compare(left, [OPPOSITE[type(op)]()], others)
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()):
            return ast.UnaryOp(ast.Not(), node.test)
        case ast.Raise(exc=ast.Call()):
            return "pass"
        case ast.Return(value=ast.Call() | ast.Name()):
            return ast.Return(ast.Constant(None))
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return ast.Constant(value + 1)
    return None


def passed_over(tree):
    """Return every node inside a raise, a warning, an assertion, an annotation, a decorator or ``if TYPE_CHECKING``.

    Whole numbers outside functions are limits and defaults. The tests need not repeat them, so they are left out, too.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {inner for function in functions for inner in ast.walk(function)}
    outside = {node for node in ast.walk(tree) if isinstance(node, ast.Constant)} - inside
    roots: list[ast.AST] = [*outside]
    for node in ast.walk(tree):
        match node:
            case ast.Raise() | ast.Assert() | ast.JoinedStr():
                roots += ast.iter_child_nodes(node)
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.AST() as annotation):
                roots.append(annotation)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                roots += node.decorator_list
                roots += filter(None, [getattr(node, "returns", None)])
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                roots += [node.test, *node.body]
            case ast.Call(func=ast.Attribute(attr="warn")):
                roots.append(node)
    return {inner for root in roots for inner in ast.walk(root)}


def mutants_of(room, path, root=ROOT):
    """Yield a mutant for each place of one file."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    code, tree = source.encode(), ast.parse(source)
    over = passed_over(tree)
    for node in ast.walk(tree):
        new = None if node in over else changed(node)
        if new is None:
            continue
        target = node.test if isinstance(node, ast.If) else node
        start = starts[target.lineno - 1] + target.col_offset
        end = starts[target.end_lineno - 1] + target.end_col_offset
        text = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
        text = f"({text})" if isinstance(new, ast.expr) and not isinstance(new, ast.Constant) else text
        yield Mutant(room, path.relative_to(root).as_posix(), target.lineno, start, end, code[start:end].decode(), text)


def rooms():
    """Return the folders and the top-level files of the package that are broken."""
    names = sorted(path.name for path in (ROOT / "apportion").iterdir() if path.suffix == ".py" or path.is_dir())
    return [name for name in names if name not in LEFT_OUT and files_of(name)]


def files_of(room):
    path = ROOT / "apportion" / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def drawn(room, each, seed):
    """Return ``each`` mutants of a room, drawn without replacement; the same for the same source and seed."""
    places = [mutant for path in files_of(room) for mutant in mutants_of(room, path)]
    return random.Random(f"{seed} {room}").sample(places, min(each, len(places)))


def suite_of(room):
    """Return the tests of a room, those of ``TESTS`` or of its name, then its doctests and the golden record."""
    stem = room.removesuffix(".py")
    named = TESTS.get(room, (f"tests/{stem}",) if (ROOT / "tests" / stem).is_dir() else (f"tests/test_{stem}.py",))
    return [path for path in (*named, f"apportion/{room}", "tests/golden") if (ROOT / path).exists()]


def tried(mutant, copy):
    """Return the first test that notices the mutant, or "" if none does."""
    path = copy / mutant.file
    source = path.read_bytes()
    path.write_bytes(mutant.broken(source))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=line"]
    try:
        run = subprocess.run(
            [*command, *suite_of(mutant.room)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS:g} s"
    finally:
        path.write_bytes(source)
    if run.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    found = found or re.search(r"while loading conftest '\S*?/(tests/\S+)'", run.stdout + run.stderr)
    if not found:
        raise RuntimeError(f"pytest ended with {run.returncode} and named no test: {run.stdout[-2000:]}{run.stderr}")
    return found[1]


def measure(mutants, processes):
    """Try every mutant, ``processes`` at once, each in a copy of the committed tree that is removed at the end.

    What was tried is kept in ``runs/benchmarks/mutants``, in a file of the commit. A run that was killed goes on.
    """
    copies: queue.Queue[Path] = queue.Queue()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8"
    )
    journal = KEPT / f"{commit.stdout.strip()}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    known = {tuple(row[:3]): row[3] for row in map(json.loads, lines)}

    def found(mutant):
        key = (mutant.place, mutant.old, mutant.new)
        if key in known:
            return mutant, known[key]
        copy = copies.get()
        try:
            noticed = tried(mutant, copy)
        finally:
            copies.put(copy)
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps([*key, noticed]) + "\n")
        print(f"{mutant.place} {mutant.old!r} -> {mutant.new!r}: {noticed or 'UNNOTICED'}", flush=True)
        return mutant, noticed

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        for number in range(processes):
            copies.put(Path(folder) / str(number))
            subprocess.run(
                ["git", "worktree", "add", "--detach", "-q", f"{folder}/{number}", "HEAD"], cwd=ROOT, check=True
            )
        try:
            return list(pool.map(found, mutants))
        finally:
            for number in range(processes):
                subprocess.run(["git", "worktree", "remove", "--force", f"{folder}/{number}"], cwd=ROOT, check=True)


def short(text):
    """Return a piece of code on one line, as a cell of a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"


def main():
    given = options(__doc__, rooms=tuple(rooms()), each=2, seed=0, processes=2, places=("all",))
    mutants = [mutant for room in given.rooms for mutant in drawn(room, given.each, given.seed)]
    if given.places != ("all",):
        measure([mutant for mutant in mutants if mutant.place in given.places], given.processes)
        return
    found = measure(mutants, given.processes)
    left = [
        (mutant.room, mutant.place, short(mutant.old), short(mutant.new)) for mutant, noticed in found if not noticed
    ]
    write(
        "mutants",
        "Does the suite notice a broken line?",
        ("room", "not noticed", "was", "became"),
        left,
        [f"{len(found)} mutants were tried, and {len(left)} were not noticed."],
        seeds=[given.seed],
    )


if __name__ == "__main__":
    main()
