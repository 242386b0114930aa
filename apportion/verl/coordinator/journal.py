"""The events of a coordinator, written to disk before it acts on them, so that it can be restarted."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from apportion.runs.whole_files import write_whole
from apportion.verl.coordinator.event_pickles import EventUnpickler
from apportion.verl.coordinator.frames import DamagedFrameError, make_frame, read_frame
from apportion.verl.coordinator.messages import MetricsLogged, Reassigned, RowsRequest, TaskResult, TrainerRequest

Event = TrainerRequest | RowsRequest | Reassigned | MetricsLogged | tuple[TaskResult, ...]

LARGE_BYTES = 2**30
"""Minimum size of the events at which the journal is replaced by a snapshot."""


class DamagedJournalError(ValueError):
    """The journal's file is damaged, or no coordinator wrote it. The message is one line: file, problem, remedy."""


class EventJournal:
    """A file with a snapshot of the state, then events. It loses no event if the writing process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._begun = 0

    @property
    def large(self) -> bool:
        """Whether a new snapshot is due: the events exceed ``LARGE_BYTES`` and the size of the last snapshot."""
        return self._file is not None and self._file.tell() - self._begun > max(LARGE_BYTES, self._begun)

    def write(self, event: Event) -> None:
        """Append ``event``. The operating system has it when this returns."""
        if self._file is None:
            self.restart(None)
        assert self._file is not None
        self._file.write(make_frame(event))
        self._file.flush()

    def restart(self, state: Mapping[str, Any] | None) -> None:
        """Replace the file by the snapshot ``state``. If that cannot be written, the old file stays."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, make_frame(state))
        self._open(self.path.stat().st_size)

    def resume(self) -> tuple[Mapping[str, Any] | None, list[Event]]:
        """Return the snapshot and its events, and append later ones to them. Cut off an event that is incomplete.

        Raises DamagedJournalError for a file that is damaged, or that no coordinator wrote.
        """
        if not self.path.exists():
            return None, []
        events: list[Event] = []
        with open(self.path, "r+b") as file:
            snapshot = self._read(file)
            if snapshot is None:
                raise self._error("its snapshot is incomplete")
            state: Mapping[str, Any] | None = self._load(snapshot)
            begun = whole = file.tell()
            while (content := self._read(file)) is not None:
                event = self._load(content)
                if not _is_event(event):
                    raise self._error(f"it must hold events of a coordinator, got a {type(event).__name__}")
                events.append(event)
                whole = file.tell()
            file.truncate(whole)
        self._open(begun)
        return state, events

    def _read(self, file: IO[bytes]) -> bytes | None:
        try:
            return read_frame(file)
        except DamagedFrameError as error:
            raise self._error(str(error)) from error

    def _load(self, content: bytes) -> Any:
        """Return the value that was pickled. Raise DamagedJournalError for what no coordinator pickles."""
        try:
            return EventUnpickler(io.BytesIO(content)).load()
        except Exception as error:  # a forged pickle can call what is known with any arguments
            raise self._error(" ".join(str(error).split()) or type(error).__name__) from error

    def _error(self, problem: str) -> DamagedJournalError:
        return DamagedJournalError(
            f"{self.path}: the journal cannot be read: {problem}; delete it, and resume the run from a checkpoint"
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self, begun: int) -> None:
        self.close()
        self._file, self._begun = open(self.path, "ab"), begun  # noqa: SIM115 - open as long as the journal is


def _is_event(event: Any) -> bool:
    if isinstance(event, tuple):
        return all(isinstance(result, TaskResult) for result in event)
    return isinstance(event, TrainerRequest | RowsRequest | Reassigned | MetricsLogged)
