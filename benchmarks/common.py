"""Write a benchmark's results: a table for readers, its headline figures for checks, and raw cells outside the tree."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import tomllib
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from apportion.lab.report.results import SeedInterval
from apportion.runs.text_table import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CELLS = ROOT / "runs" / "benchmarks"
"""Folder of the raw cells, which git ignores."""
HEADLINES = ROOT / "benchmarks" / "headlines.toml"
PACKAGES = ("numpy", "scipy", "torch", "transformers")

Wanted = Mapping[str, Sequence[str]]
"""Columns by row, a row named by its first cells with " | " between them."""


def machine() -> dict[str, str | int]:
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


def facts() -> dict[str, str | int]:
    """Return the machine, the date and the commit of a measurement."""
    return {**machine(), "date": datetime.now(UTC).date().isoformat(), "commit": _commit()}


def write(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    notes: Sequence[str],
    *,
    seeds: Sequence[int],
    cells: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
    results: Path = RESULTS,
) -> None:
    """Write and print the table ``NAME.md``, and write its headline figures ``NAME.json`` and its raw cells.

    ``rows`` hold text or numbers, shown as they are. The raw cells, ``rows`` among them, go to ``runs/benchmarks``. The
    headline figures are those that ``headlines.toml`` names for this table. The notes and tables of ``more``, which no
    document quotes, are made and not kept: they are printed, and the page with them is written beside the raw cells.
    With other ``results`` than the tree's the raw cells go to ``results/cells``, and there are no headline figures.
    """
    found = {**facts(), "seeds": " ".join(map(str, seeds))}
    last = ", ".join(f"{key} {value}" for key, value in found.items())
    kept = [f"# {title}", table(columns, rows), *notes]
    beside = CELLS if results == RESULTS else results / "cells"
    whole = "\n\n".join([*kept, *more, last]) + "\n"
    print(whole)
    _write(results / f"{name}.md", "\n\n".join([*kept, last]) + "\n")
    if more:
        _write(beside / f"{name}.md", whole)
    content = {"facts": found, "columns": list(columns), "rows": [list(row) for row in rows], **(cells or {})}
    _write(beside / f"{name}.json", json.dumps(content, indent=1) + "\n")
    if results == RESULTS:
        write_headlines(name)


def options(says: str | None, **defaults: Any) -> argparse.Namespace:
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


def quoted(name: str, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return the rows that ``headlines.toml`` names for the table ``name``: those that documents quote."""
    keys = [key.split(" | ") for key in tomllib.loads(HEADLINES.read_text(encoding="utf-8"))[name]]
    return [row for row in rows if any([*map(str, row[: len(key)])] == key for key in keys)]


def write_headlines(name: str) -> None:
    """Write ``results/NAME.json``: the cells of ``results/NAME.md`` that ``headlines.toml`` names, if it names any."""
    wanted = tomllib.loads(HEADLINES.read_text(encoding="utf-8")).get(name)
    if wanted:
        found = headlines((RESULTS / f"{name}.md").read_text(encoding="utf-8"), wanted)
        _write(RESULTS / f"{name}.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def headlines(text: str, wanted: Wanted) -> dict[str, dict[str, str]]:
    """Return the cells of the Markdown tables in ``text`` that ``wanted`` names, by row and column.

    If several tables have such a row and column, the first counts. A ``ValueError`` says which cell is missing.
    """
    tables = list(_tables(text))
    return {row: {column: _cell(tables, row, column) for column in columns} for row, columns in wanted.items()}


def _cell(tables: Sequence[list[list[str]]], row: str, column: str) -> str:
    key = row.split(" | ")
    for columns, *rows in tables:
        for cells in rows:
            if column in columns and cells[: len(key)] == key:
                return cells[columns.index(column)]
    raise ValueError(f"no table has a cell for row {row!r} and column {column!r}; correct {HEADLINES.name}")


def _tables(text: str) -> Iterator[list[list[str]]]:
    """Yield each Markdown table as rows of cells, its columns' names first and without the line of dashes."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|\n").split("|")])
        elif rows:
            yield [rows[0], *rows[2:]]
            rows = []


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table with all columns but the first aligned to the right."""
    short = [len(row) for row in rows if len(row) != len(columns)]
    if short:
        raise ValueError(f"every row needs {len(columns)} cells, one a column, got {short[0]}; fill it with '-'")
    return "\n".join(markdown_table(columns, [[*map(str, row)] for row in rows], "l" + "r" * (len(columns) - 1)))


def spread(values: Sequence[float], form: str) -> str:
    """Return the mean of ``values`` and the half width of its 95% interval, without the latter for a single value."""
    found = SeedInterval.of(values)
    return format(found.mean, form) + ("" if found.half_width is None else f" ± {format(found.half_width, form)}")


def peak_mib(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the peak of numpy's and Python's allocations during ``call``, beyond those before it, and its result."""
    tracemalloc.start()
    result = call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20, result


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _commit() -> str:
    """Return the short hash of the commit, with "+" if a Python file was changed since; "unknown" without git."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8"
        )

    if shutil.which("git") is None:
        return "unknown"
    changed = git("diff", "--quiet", "HEAD", "--", "*.py").returncode
    found = git("rev-parse", "--short", "HEAD").stdout.strip()
    return found + "+" * bool(changed) if found else "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
