"""What every benchmark writes down: the machine, the date, and one table for readers and for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "scipy", "torch", "transformers")


def machine() -> dict[str, str | int]:
    """Processor, cores and threads in use, system, BLAS, and the versions of Python and of what computes.

    ``threads`` is ``OMP_NUM_THREADS``, or all cores where that is not set.
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


def write(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    notes: Sequence[str],
    *,
    seeds: Sequence[int] | None = None,
    extra: Mapping[str, Any] | None = None,
    results: Path = RESULTS,
) -> None:
    """``results/NAME.md`` for readers, printed too, and ``results/NAME.json`` for programs.

    ``rows`` hold text or numbers, shown as they are; ``extra`` goes to the JSON only.
    """
    date, found = datetime.now(UTC).date().isoformat(), machine()
    facts = {**found, "date": date} | ({"seeds": " ".join(map(str, seeds))} if seeds is not None else {})
    lines = [f"# {title}", "", table(columns, rows), ""]
    lines += [paragraph for note in notes for paragraph in (note, "")]
    lines.append(", ".join(f"{key} {value}" for key, value in facts.items()))
    text = "\n".join(lines) + "\n"
    content = {
        "title": title,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
        "machine": found,
        "date": date,
        "seeds": None if seeds is None else list(seeds),
        **(extra or {}),
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.md").write_text(text, encoding="utf-8")
    (results / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown, numbers to the right; also for a second table among the notes."""
    short = [len(row) for row in rows if len(row) != len(columns)]
    if short:
        raise ValueError(f"every row needs {len(columns)} cells, one a column, got {short[0]}; fill it with '-'")
    cells = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in cells)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
