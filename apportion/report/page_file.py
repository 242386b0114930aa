"""Where a page may be written, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from apportion.runs.whole_files import write_whole


def check_place(out: Path, runs: Sequence[Path]) -> None:
    """Raise ValueError if ``out`` holds a file that is no report, or if its folder is missing.

    ``runs`` are the runs on the page. A link, a device and a named pipe would be replaced by a file.
    """
    with _named(out):
        if out.is_symlink() or (out.exists() and not out.is_file()):
            raise ValueError(
                f"the page must be a file, got a link, folder, device or pipe {out}; name another by --out"
            )
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
    """Replace an OSError in the block by a ValueError that names the page, and not its draft."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the page cannot be written to {out} ({error.strerror or error}); name another by --out"
        ) from error
