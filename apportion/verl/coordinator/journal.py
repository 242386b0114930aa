"""The events of a coordinator, written to disk before it acts on them, so that it can be restarted."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from apportion.runs.whole_files import write_whole_by
from apportion.verl.coordinator.messages import MetricsLogged, Reassigned, TaskResult, TrainerRequest

Event = TrainerRequest | Reassigned | MetricsLogged | tuple[TaskResult, ...]

LARGE_BYTES = 2**30
"""Minimum size of the events at which the journal is replaced by a snapshot."""


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
        pickle.dump(event, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._file.flush()

    def restart(self, state: Mapping[str, Any] | None) -> None:
        """Replace the file by the snapshot ``state``. If that cannot be written, the old file stays."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_by(self.path, lambda file: pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL))
        self._open(self.path.stat().st_size)

    def resume(self) -> tuple[Mapping[str, Any] | None, list[Event]]:
        """Return the snapshot and its events, and append later ones to them. Cut off an event that is incomplete."""
        if not self.path.exists():
            return None, []
        events: list[Event] = []
        with open(self.path, "r+b") as file:
            state: Mapping[str, Any] | None = pickle.load(file)
            begun = whole = file.tell()
            while whole < os.fstat(file.fileno()).st_size:
                try:
                    events.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):
                    file.truncate(whole)
                else:
                    whole = file.tell()
        self._open(begun)
        return state, events

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self, begun: int) -> None:
        self.close()
        self._file, self._begun = open(self.path, "ab"), begun  # noqa: SIM115 - open as long as the journal is
