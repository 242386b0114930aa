"""Where a page may be written, and how it is made again while its runs go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from apportion.records import open_run
from apportion.report.page import page_of
from apportion.report.profile import Replayer
from apportion.report.report import RunReport, report_of
from apportion.report.sources import Opener, read_sources
from apportion.runs.whole_files import write_whole

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
    price_per_hour: float | None = None,
) -> Iterator[RunReport]:
    """Write the page to ``out``, again whenever a file of a run has changed, and yield each report that was written.

    The files are looked at every ``refresh`` seconds. It ends when a run has reached ``until_step``, or after
    ``timeout`` seconds; without either it goes on until it is stopped. The last page no longer loads itself again.
    Raises as ``read_sources`` and ``report_of`` do, and OSError.
    """
    if not 0 < refresh <= MOST_SECONDS:
        raise ValueError(
            f"refresh must be a positive number of seconds, at most {MOST_SECONDS:.0f}, got {refresh}; 5 is a good one"
        )
    if timeout is not None and not 0 <= timeout <= math.inf:
        raise ValueError(f"timeout must be a number of seconds of at least 0, got {timeout}; 3600 is an hour")
    check_place(out, paths)
    ends = time.monotonic() + (math.inf if timeout is None else timeout)
    seen: Stamp | None = None
    while True:
        if (now := stamp(paths)) != seen:
            seen, report = now, report_of(read_sources(paths, advice, replayed, opened), price_per_hour)
            write_page(out, page_of(report, refresh))
            yield report
        left = ends - time.monotonic()
        if left <= 0 or (until_step is not None and report.last_step >= until_step):
            write_page(out, page_of(report))
            return
        wait(min(refresh, left))


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


def check_place(out: Path, runs: Sequence[Path]) -> None:
    """Raise ValueError if a page at ``out`` would replace something else than a page, or has no folder.

    ``runs`` are the runs on the page. A device and a named pipe would be replaced by a file.
    """
    with _named(out):
        if out.is_symlink():
            raise ValueError(f"the page must be a file, got the link {out}; name the file that it leads to by --out")
        if out.exists() and not out.is_file():
            kind = "folder" if out.is_dir() else "device or pipe"
            raise ValueError(f"the page must be a file, got the {kind} {out}; name a file by --out")
        if not out.parent.is_dir():
            raise ValueError(
                f"the folder of the page must exist, got {out.parent}; create it, or name another by --out"
            )
        if any(run.exists() and out.exists() and run.samefile(out) for run in runs):
            raise ValueError(f"the page must be another file than the runs, got {out} for both; name another by --out")


def write_page(out: Path, page: str) -> None:
    """Write the page in one step. Raises ValueError, with a remedy, if that fails."""
    with _named(out):
        write_whole(out, page)


@contextmanager
def _named(out: Path) -> Iterator[None]:
    """Raise ValueError, which names the page and not its draft, in place of an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the page cannot be written to {out} ({error.strerror or error}); name another by --out"
        ) from error
