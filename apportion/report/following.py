"""A report that is made again while its runs go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from apportion.records import open_run
from apportion.report.page import page_of
from apportion.report.profile import Replayer
from apportion.report.report import RunReport, report_of
from apportion.report.sources import Opener, read_sources
from apportion.report.writing import check_place, write_page

MOST_SECONDS = 86400.0
"""The longest pause between two looks, a day."""

Stamp = tuple[tuple[str, int, int], ...]


def follow(
    paths: Sequence[Path],
    out: Path,
    refresh: float,
    until_step: int | None = None,
    timeout: float | None = None,
    advice: bool = False,
    replayed: Replayer | None = None,
    opened: Opener = open_run,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[RunReport]:
    """Write the page to ``out``, again whenever a file of a run has changed, and yield each report that was written.

    The files are looked at every ``refresh`` seconds. It ends when a run has reached ``until_step``, or after
    ``timeout`` seconds; without either it goes on until it is stopped. The last page no longer loads itself again.
    Raises as ``read_sources`` does, and OSError.
    """
    if not 0 < refresh <= MOST_SECONDS:
        raise ValueError(
            f"refresh must be a positive number of seconds, at most {MOST_SECONDS:.0f}, got {refresh}; 5 is a good one"
        )
    if timeout is not None and not 0 <= timeout <= math.inf:
        raise ValueError(f"timeout must be a number of seconds of at least 0, got {timeout}; 3600 is an hour")
    check_place(out, paths)
    ends = None if timeout is None else time.monotonic() + timeout
    seen: Stamp | None = None
    report: RunReport | None = None
    while True:
        now = stamp(paths)
        if report is None or now != seen:
            seen, report = now, report_of(read_sources(paths, advice, replayed, opened))
            write_page(out, page_of(report, refresh))
            yield report
        reached = until_step is not None and report.last_step >= until_step
        left = None if ends is None else ends - time.monotonic()
        if reached or (left is not None and left <= 0):
            write_page(out, page_of(report))
            return
        wait(refresh if left is None else min(refresh, left))


def stamp(paths: Sequence[Path]) -> Stamp:
    """Return the names, sizes and times of all files at ``paths``, which change when a run goes on."""
    found = []
    for path in paths:
        for each in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path, *path.parent.glob(f"{path.stem}.*")]:
            try:
                status = each.stat()
            except FileNotFoundError:
                continue  # replaced or removed since it was listed
            found.append((str(each), status.st_size, status.st_mtime_ns))
    return tuple(found)
