"""A bound for every room: tokens of code, words of documents. The bounds in ``weight.toml`` are only ever lowered.

``python -m tests.test_weight`` prints each room beside its bound, and ``--lower`` writes the bounds that are lower now.
A room is a folder or a top-level file of the package; the tests, the benchmarks and the documents are one room each.
Who must raise a bound edits ``weight.toml`` by hand, and says in the commit what the weight buys.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUNDS = Path(__file__).with_name("weight.toml")

SLACK = 0.02
"""A bound that is higher than the room by this share must be lowered, so that nobody fills what another has freed."""

PART = re.compile(
    r"(?P<free>\s+|#[^\n]*|\\\n)"
    r"|(?P<text>(?i:[rbuf]{0,2})(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|\'\'\'(?:[^\\]|\\.)*?\'\'\'"
    r"|\"(?:[^\"\\\n]|\\.)*\"|\'(?:[^\'\\\n]|\\.)*\'))"
    r"|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?[jJ]?(?!\w)|\w+"
    r"|(?:\*\*|//|>>|<<|[-+*/%&|^@=<>!:])=|\.\.\.|->|\*\*|//|<<|>>|.",
    re.DOTALL,
)
"""A token of Python 3.11: what weighs nothing, a text, a number, a name or an operator. An f-string is one."""


def tokens(source):
    """Return the number of tokens of ``source`` without comments, docstrings and the shape of lines."""
    starts = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]
    docstrings = {
        starts[node.lineno - 1] + node.col_offset
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    counted = (part for part in PART.finditer(source) if part.lastgroup != "free")
    return sum(part.lastgroup != "text" or part.start() not in docstrings for part in counted)


def code(paths):
    return sum(tokens(path.read_text()) for path in paths)


def words(paths):
    return sum(len(path.read_text().split()) for path in paths)


def rooms():
    """Return the folders and the top-level files of the package."""
    package = ROOT / "apportion"
    found = [path for path in package.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))]
    return sorted(found, key=lambda path: path.name)


def weights():
    """Return the weight of every room: tokens of ``[code]``, words of ``[words]``."""
    package = {room.name: code([room] if room.is_file() else room.rglob("*.py")) for room in rooms()}
    results = ROOT / "benchmarks" / "results"
    return {
        "code": package
        | {"tests": code((ROOT / "tests").rglob("*.py")), "benchmarks": code((ROOT / "benchmarks").rglob("*.py"))},
        "words": {"docs": words((ROOT / "docs").rglob("*.md")), "benchmarks/results": words(results.rglob("*.md"))},
    }


def bounds():
    return tomllib.loads(BOUNDS.read_text())


def judged(weights, bounds):
    """Return a line for each room without a bound, each bound without a room, and each room too heavy or too light."""
    found = [f"{room} has no bound; write its weight into tests/weight.toml" for room in weights.keys() - bounds.keys()]
    found += [f"{room} is gone; delete its line in tests/weight.toml" for room in bounds.keys() - weights.keys()]
    for room in sorted(weights.keys() & bounds.keys()):
        weight, bound = weights[room], bounds[room]
        if weight > bound:
            found.append(f"{room} weighs {weight}, and its bound is {bound}; take out {weight - bound}")
        elif weight < (1 - SLACK) * bound:
            found.append(f"{room} weighs {weight}, and its bound is {bound}; run python -m tests.test_weight --lower")
    return found


def test_no_room_is_heavier_than_its_bound():
    now, limits = weights(), bounds()
    assert not [line for kind in now for line in judged(now[kind], limits[kind])]


def test_a_room_that_is_heavier_lighter_new_or_gone_is_named():
    assert not judged({"kept": 100}, {"kept": 100})
    found = judged({"heavy": 101, "light": 97, "new": 1}, {"heavy": 100, "light": 100, "gone": 1})
    assert [line.split()[0] for line in found] == ["new", "gone", "heavy", "light"]


def test_comments_docstrings_and_the_shape_of_lines_weigh_nothing():
    bare = "def double(x):\n    return 2 * x\n"
    dressed = 'def double(\n    x,\n):  # twice\n    """Return the double."""\n\n    return 2 * x\n'
    assert tokens(bare) == 10 and tokens(dressed) == 11  # a trailing comma is one
    assert tokens("text = f'{x + 1} of {y}'\n") == 3
    free = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    if sys.version_info < (3, 12):  # from then on an f-string is many tokens for the standard library
        for path in sorted((ROOT / "apportion" / "vote").glob("*.py")):
            source = re.sub(r'"""(?:[^\\]|\\.)*?"""', "0", path.read_text(), flags=re.DOTALL)
            listed = [each.type not in free for each in tokenize.generate_tokens(io.StringIO(source).readline)]
            assert tokens(source) == sum(listed), path


def main(arguments):
    """Print every room, its weight and its bound. With ``--lower``, write the bounds that are lower now."""
    now, before = weights(), bounds()
    lines = []
    for kind in now:
        lines.append(f"[{kind}]")
        for room, weight in now[kind].items():
            bound = before.get(kind, {}).get(room, weight)
            print(f"{room:20} {weight:8,} {bound:8,}")  # noqa: T201
            lines.append(f'"{room}" = {min(weight, bound)}')
        lines.append("")
    if "--lower" in arguments:
        BOUNDS.write_text("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
