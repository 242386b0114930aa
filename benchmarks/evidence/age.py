"""Which values are older than the code that they depend on. ``python -m benchmarks.evidence --age`` finds out.

A value keeps the commit that it was measured at. What the cell reached then is read from git, and compared with what it
reaches now. ``older.json`` names definitions that differ. They may be formulas, or only written in another way: the
value is not known to be that of today's code. Measuring again makes it current.

A current value is outdated by any change to what it reaches. A value that is known to be older is told again only if
the benchmarks or the rooms with formulas change.
"""

import json
import subprocess
from collections import defaultdict
from pathlib import Path

from apportion.runs.whole_files import write_whole
from benchmarks.evidence import reach

OLDER = Path(__file__).parent / "older.json"
GOLDEN = "tests/golden/decisions.json.gz"
"""What every rule decides, as the golden record keeps it."""
SHOWN = 12
"""Names of changed definitions that are kept for each value, formulas first."""


def older():
    """Return what is known of values that are older than the code: by cell ``formulas`` (a key) and ``changed``.

    ``same formulas`` says that neither a room with formulas nor the benchmark has changed, but another room. ``same
    decisions`` says that the golden record of decisions was then as it is now.
    """
    return json.loads(OLDER.read_text(encoding="utf-8")) if OLDER.exists() else {}


def state_of(name, value, cell):
    """Return "current", or the definitions that changed since; None if ``--age`` has not seen the code as it is."""
    if value["key"] == cell.key:
        return "current"
    known = older().get(name)
    return str(known["changed"]) if known and known["formulas"] == cell.formulas else None


def find(values, cells):
    """Write ``older.json`` for committed ``values``, by cell. Return the key of each at its commit.

    A value that is current keeps its key. So does one whose commit git does not have: what changed is unknown then.
    """
    by_commit, keys, found = defaultdict(list), {}, {}
    for name, each in values.items():
        keys[name] = each["key"]
        if each["key"] != cells[name].key:
            by_commit[each["facts"]["commit"].rstrip("+")].append(name)
    homes = _homes()
    for commit, names in by_commit.items():
        try:
            code = reach.Code(reach.at_commit(commit))
        except subprocess.CalledProcessError:
            unknown = "unknown, git does not have the commit"
            found |= {name: {"formulas": cells[name].formulas, "changed": unknown} for name in names}
            continue
        decided = subprocess.run(["git", "diff", "--quiet", commit, "--", GOLDEN], cwd=reach.ROOT).returncode == 0
        for name in names:
            then, now = cells[name].reached(code), cells[name].reached()
            keys[name] = reach.key_of(then, cells[name].measure)
            changed = sorted(each for each in then.keys() | now.keys() if then.get(each) != now.get(each))
            if changed:
                own = ("benchmarks", *reach.FORMULAS)
                found[name] = {
                    "formulas": cells[name].formulas,
                    "same formulas": cells[name].reached(code, own) == cells[name].reached(rooms=own),
                    "same decisions": decided,
                    "changed": _told(changed, homes) if then else "the measurement",
                }
    _write(found)
    return keys


def forget(names):
    """Take values that were measured again out of ``older.json``."""
    known = older()
    if known.keys() & set(names):
        _write({name: each for name, each in known.items() if name not in names})


def _write(found):
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(found.items()))
    write_whole(OLDER, f"{{\n{lines}\n}}\n")


def _homes():
    """Return the room of each definition of the package, by its name."""
    code = reach.Code(reach.working_tree())
    return {
        name: "/".join(path.split("/")[:2])
        for path in code.sources
        if path.startswith("apportion/") and (module := code.module(path[:-3].replace("/", ".")))
        for name in module.definitions
    }


def _told(changed, homes):
    """Return how many definitions changed, and the names of some: those of formulas first."""
    first = sorted(changed, key=lambda name: homes.get(name.split(".")[0], "") not in reach.FORMULAS)
    return f"{len(changed)} definitions: {', '.join(first[:SHOWN])}{', ...' if len(changed) > SHOWN else ''}"
