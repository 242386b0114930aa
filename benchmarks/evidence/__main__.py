"""``python -m benchmarks.evidence``: measure what is missing, then write docs/evidence.md.

    python -m benchmarks.evidence --only hora. --processes 1
    python -m benchmarks.evidence --list              # the cells and their minutes
    python -m benchmarks.evidence --fresh             # measure again what is measured
    python -m benchmarks.evidence --page              # only write the page, from what is measured
    python -m benchmarks.evidence --canaries          # compute the canaries again, and say which changed

``--only`` and ``--list`` know a cell by its name, which begins with that of its module.
"""

import argparse
import sys

from filelock import FileLock, Timeout

from benchmarks.common import facts
from benchmarks.evidence import cell
from benchmarks.evidence.page import is_of_a_commit, write
from benchmarks.evidence.registry import all_cells, cell_named


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="cells whose names begin so")
    parser.add_argument("--processes", type=int, default=2, help="cells at a time")
    parser.add_argument("--fresh", action="store_true", help="measure again what is measured")
    parser.add_argument("--list", action="store_true", help="list the cells and their minutes")
    parser.add_argument("--cell", help="measure this cell in this process")
    parser.add_argument("--child", action="store_true", help="with --cell: end when standard input ends")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from what is measured")
    parser.add_argument("--canaries", action="store_true", help="measure nothing, keep the canaries of today's code")
    given = parser.parse_args()
    if given.processes < 1:
        parser.error(f"--processes must be at least 1, got {given.processes}; leave it out for 2")
    if given.child:
        cell.end_with_parent()
    if given.cell:
        found = cell_named(given.cell)
        if found is None:
            parser.error(f"--cell must name a cell, got {given.cell}; --list shows them")
        cell.measure(given.cell, found)
        return 0
    if given.canaries:
        from benchmarks.evidence import canaries  # noqa: PLC0415 - which imports what all cells measure

        print(f"changed: {', '.join(canaries.keep()) or 'none'}. A test names the values that are older now")
        return 0
    if given.page:
        write()
        return 0
    chosen = {name: each for name, each in all_cells().items() if name.startswith(given.only)}
    if not chosen:
        parser.error(f"--only must begin the name of a cell, got {given.only}; --list shows them")
    if given.list:
        for name, each in chosen.items():
            print(f"{each.minutes:5.1f} min  {'measured' if cell.kept(name, each) else '-':9}{name}")
        print(f"{sum(each.minutes for each in chosen.values()):5.1f} min on one core")
        return 0
    if not is_of_a_commit({"facts": facts()}):
        parser.error(f"a value must be of a commit, got {facts()['commit']}, a tree with changes; commit them first")
    cell.FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cell.FOLDER / "lock", timeout=0):
            if given.fresh:
                for name in chosen:
                    (cell.FOLDER / f"{name}.json").unlink(missing_ok=True)
            failed = cell.run(chosen, given.processes)
            write()
    except Timeout:
        parser.error(f"one process measures at a time, got {cell.FOLDER} in use; wait until the other ends")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
