"""Where a page may be written, and how: never in the place of a run, a folder or a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from apportion.runs.whole_files import write_whole


def check_place(out: Path, runs: Sequence[Path]) -> None:
    """Raise ValueError if a page at ``out`` would replace something else than a page, or has no folder.

    ``runs`` are the runs on the page. A device and a named pipe would be replaced by a file.
    """
    try:
        _check_place(out, runs)
    except OSError as error:
        raise _unwritable(out, error) from error


def _check_place(out: Path, runs: Sequence[Path]) -> None:
    if out.is_symlink():
        raise ValueError(f"the page must be a file, got the link {out}; name the file that it leads to by --out")
    if out.exists() and not out.is_file():
        kind = "folder" if out.is_dir() else "device or pipe"
        raise ValueError(f"the page must be a file, got the {kind} {out}; name a file by --out")
    if not out.parent.is_dir():
        raise ValueError(f"the folder of the page must exist, got {out.parent}; create it, or name another by --out")
    if any(run.exists() and out.exists() and run.samefile(out) for run in runs):
        raise ValueError(f"the page must be another file than the runs, got {out} for both; name another by --out")


def write_page(out: Path, page: str) -> None:
    """Write the page in one step. Raises ValueError, with a remedy, if that fails."""
    try:
        write_whole(out, page)
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> ValueError:
    return ValueError(f"the page cannot be written to {out} ({error.strerror or error}); name another by --out")
