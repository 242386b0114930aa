"""Follow the rollout log of a run that is still being written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from apportion.records.log_folder import LogFile, files_of
from apportion.records.reading import record_of_files
from apportion.records.record_writing import ABOUT, About
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import RunRecord
from apportion.rows import kind_of


@dataclass(frozen=True, eq=False)
class LogNews:
    """Changes of a log: steps from ``removed_from`` on were removed, if that is not None; ``records`` are new.

    Each record is one file of the log, with one step or a few.
    """

    records: tuple[RunRecord, ...] = ()
    removed_from: int | None = None

    @property
    def last_step(self) -> int | None:
        """The last new step; None without one."""
        return int(self.records[-1].step[-1]) if self.records and len(self.records[-1].step) else None


@dataclass
class Follower:
    """Reads the new steps of the log in ``folder``. It remembers which files it has read.

    The folder may be missing. A run that resumes from an earlier step removes or replaces files: these steps are
    reported as removed, and their new files as new.
    """

    folder: Path
    _read: dict[LogFile, tuple[int, int, int]] = field(default_factory=dict, init=False, repr=False)

    def look(self) -> LogNews:
        """Return what changed since the last call. Raises RecordError for a damaged step, or if no log can be there."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RecordError(f"a rollout log is a folder, got the file {self.folder}; pass the folder")
        if not self._read and (other := _foreign(self.folder)) is not None:
            raise RecordError(
                f"a folder that is followed must be a rollout log of apportion, got one with {other}; pass the log's "
                "own folder, such as rollouts in it, or read this one by apportion diagnose"
            )
        for _ in range(2):  # a run that resumes at this moment may remove a file that was just listed
            try:
                return self._look()
            except FileNotFoundError:
                continue
        return LogNews()

    def _look(self) -> LogNews:
        found = {file: _identity(file.path) for file in files_of(self.folder)}
        gone = [file.first for file, identity in self._read.items() if found.get(file) != identity]
        kept = {file: identity for file, identity in self._read.items() if not gone or file.first < min(gone)}
        about = About.read(self.folder) or About(self.folder.resolve().name)
        new = {file: identity for file, identity in found.items() if file not in kept}
        records = tuple(record_of_files([file.path], about) for file in new)
        self._read = kept | new
        return LogNews(records, min(gone, default=None))


def follow(
    folder: str | Path,
    *,
    every_seconds: float = 1.0,
    timeout_seconds: float | None = None,
    until_step: int | None = None,
) -> Iterator[LogNews]:
    """Look into the log in ``folder`` every ``every_seconds``, and yield what changed, which may be nothing.

    The first look is at once, and refuses a folder with another tool's log. The iterator ends after
    ``timeout_seconds``, or when there is a step of at least ``until_step``; without both it never ends. Errors are
    those of ``Follower.look``.
    """
    follower, started = Follower(Path(folder)), time.monotonic()
    while True:
        news = follower.look()
        yield news
        if until_step is not None and news.last_step is not None and news.last_step >= until_step:
            return
        left = float("inf") if timeout_seconds is None else timeout_seconds - (time.monotonic() - started)
        if left <= 0:
            return
        time.sleep(min(every_seconds, left))


def _foreign(folder: Path) -> Path | None:
    """Return another tool's log in or below a folder that has no step of a rollout log; None if there is none."""
    if files_of(folder):
        return None
    found = (each for pattern in ("*", "*/*") for each in sorted(folder.glob(pattern)) if each.name != ABOUT)
    return next((each for each in found if each.is_file() and (kind_of(each) or "tfevents" in each.name)), None)


def _identity(path: Path) -> tuple[int, int, int]:
    """Return a value that changes if the file is replaced."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
