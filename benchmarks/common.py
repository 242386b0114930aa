"""Write a benchmark's results: a table for readers, its headline figures for checks, and raw cells outside the tree."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import time
import tomllib
import tracemalloc
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from apportion.evaluation import seed_interval
from apportion.runs.text_table import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CELLS = ROOT / "runs" / "benchmarks"
"""Folder of the raw cells, which git ignores."""
HEADLINES = ROOT / "benchmarks" / "headlines.toml"
LEFT_OUT = "What no document quotes is left out."
PACKAGES = ("numpy", "scipy", "torch", "transformers")


def machine():
    """Return the processor, cores and threads in use, system, BLAS, and versions of Python and the numerical packages.

    ``threads`` is ``OMP_NUM_THREADS``, or the number of cores if it is not set.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "processor": _processor(),
        "cores": usable,
        "threads": int(os.environ.get("OMP_NUM_THREADS", usable)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: found for package in PACKAGES if (found := _version(package))},
        "blas": f"{blas['name']} {blas['version']}",
    }


def facts():
    """Return the machine, the date and the commit of a measurement."""
    return {**machine(), "date": datetime.now(UTC).date().isoformat(), "commit": _commit()}


def write(name, title, columns, rows, notes, *, seeds, cells=None, more=(), results=RESULTS, measured=None):
    """Write and print the table ``NAME.md``, and write its raw cells.

    ``rows`` hold text or numbers, shown as they are. The raw cells, ``rows`` among them, go to ``runs/benchmarks``.
    What no document quotes is made and not kept: the notes and tables of ``more``, and the rows and columns that
    ``headlines.toml`` does not name. It is printed, and the whole page is written beside the raw cells. With other
    ``results`` than the tree's the raw cells go to ``results/cells``, and all rows and columns are kept. ``measured``
    are the facts of the machine that measured, if that is another one.
    """
    found = {**(measured or facts()), "seeds": " ".join(map(str, seeds))}
    last = ", ".join(f"{key} {value}" for key, value in found.items())
    first = "\n\n".join([f"# {title}", table(columns, rows), *notes])
    whole = "\n\n".join([first, *more, last]) + "\n"
    print(whole)
    ours = results == RESULTS
    beside = CELLS if ours else results / "cells"
    kept = quoted(name, first) if ours else first
    _write(results / f"{name}.md", "\n\n".join([kept, *([LEFT_OUT] if kept != first else []), last]) + "\n")
    _write(beside / f"{name}.md", whole)
    content = {"facts": found, "columns": list(columns), "rows": [list(row) for row in rows], **(cells or {})}
    _write(beside / f"{name}.json", json.dumps(content, indent=1) + "\n")


def options(says, **defaults):
    """Return the options of the command line, one for each of ``defaults`` and of its type.

    A tuple takes several values of the type of its first, and False is a switch.
    """
    parser = argparse.ArgumentParser(description=says, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
            continue
        several = isinstance(default, tuple)
        kind = type(default[0] if several else default)
        parser.add_argument(f"--{name}", type=kind, nargs="+" if several else None, default=default, help=f"{default}")
    return parser.parse_args()


def quoted(name, text):
    """Return the page ``text`` of the table ``name`` with the rows and columns that ``headlines.toml`` names.

    A table of the page without such a row or column is kept whole, and so are the columns that name a row. If no rows
    are named, all are kept.
    """
    named = tomllib.loads(HEADLINES.read_text(encoding="utf-8")).get(name)
    if not named:
        return text
    keys = [row.split(" | ") for row in named["rows"]] if "rows" in named else [[]]
    parts = []
    for part in text.split("\n\n"):
        columns, *rows = cells_of(part) or [[]]
        own = [row for row in rows if any(row[: len(key)] == key for key in keys)]
        places = [i for i, column in enumerate(columns) if i < max(map(len, keys)) or column in named["columns"]]
        known = own and set(columns) & set(named["columns"])
        parts.append(_chosen(columns, own, places) if known else part)
    return "\n\n".join(parts)


def _chosen(columns, rows, places):
    return table([columns[i] for i in places], [[row[i] for i in places] for row in rows])


def headline(name, row, column):
    """Return a cell of the committed table ``name``. If several of the page's tables have it, the first counts."""
    key = row.split(" | ")
    for part in (RESULTS / f"{name}.md").read_text(encoding="utf-8").split("\n\n"):
        columns, *rows = cells_of(part) or [[]]
        for cells in rows:
            if column in columns and cells[: len(key)] == key:
                return cells[columns.index(column)]
    raise ValueError(f"no table of {name}.md has a cell for row {row!r} and column {column!r}")


def cells_of(part):
    """Return the cells of a Markdown table, its columns' names first; nothing for another text."""
    lines = part.strip().splitlines()
    if not part.startswith("|"):
        return []
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def table(columns, rows):
    """Return a Markdown table with all columns but the first aligned to the right."""
    short = [len(row) for row in rows if len(row) != len(columns)]
    if short:
        raise ValueError(f"every row needs {len(columns)} cells, one a column, got {short[0]}; fill it with '-'")
    return "\n".join(markdown_table(columns, [[*map(str, row)] for row in rows], "l" + "r" * (len(columns) - 1)))


def spread(values, form):
    """Return the mean of ``values`` and the half width of its 95% interval, without the latter for a single value."""
    mean, half = map(float, seed_interval(values))
    return format(mean, form) + (f" ± {format(half, form)}" if len(values) > 1 else "")


def peak_mib(call):
    """Return the peak of numpy's and Python's allocations during ``call``, beyond those before it."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def processor_seconds(call, repeats):
    """Return the median, the least and the most processor seconds of so many calls."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), min(seconds), max(seconds)


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _commit():
    """Return the short hash of the commit, with "+" if a Python file was changed since; "unknown" without git."""

    def git(*arguments):
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8"
        )

    if shutil.which("git") is None:
        return "unknown"
    changed = git("diff", "--quiet", "HEAD", "--", "*.py").returncode
    found = git("rev-parse", "--short", "HEAD").stdout.strip()
    return found + "+" * bool(changed) if found else "unknown"


def _processor():
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None
