"""What happened to a coordinator, on disk before it acts on it: all that it needs to go on after a restart."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from apportion.files import write_whole_by
from apportion.integrations.verl.messages import Dispatch, Logged, Moved, Report

Record = Dispatch | Moved | Logged | tuple[Report, ...]

LARGE_BYTES = 2**30
"""Records that are worth a new beginning."""


class Journal:
    """A file that begins with a state and goes on with records; none is lost when the process that writes it dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._begun = 0

    @property
    def large(self) -> bool:
        """Whether it is time to begin anew: the records are long, and longer than the state that they follow."""
        return self._file is not None and self._file.tell() - self._begun > max(LARGE_BYTES, self._begun)

    def write(self, record: Record) -> None:
        """Adds ``record``; it is with the system when this returns."""
        if self._file is None:
            self.restart(None)
        assert self._file is not None
        pickle.dump(record, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._file.flush()

    def restart(self, state: Mapping[str, Any] | None) -> None:
        """Begins anew with ``state``, in place of all that is there, which stays where that cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_by(self.path, lambda file: pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL))
        self._open(self.path.stat().st_size)

    def resume(self) -> tuple[Mapping[str, Any] | None, list[Record]]:
        """The state and the records, which later ones follow.

        A record that was being written when its process died is cut off.
        """
        if not self.path.exists():
            return None, []
        records: list[Record] = []
        with open(self.path, "r+b") as file:
            state: Mapping[str, Any] | None = pickle.load(file)
            begun = whole = file.tell()
            while whole < os.fstat(file.fileno()).st_size:
                try:
                    records.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):
                    file.truncate(whole)
                else:
                    whole = file.tell()
        self._open(begun)
        return state, records

    def close(self) -> None:
        """Ends writing."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self, begun: int) -> None:
        self.close()
        self._file, self._begun = open(self.path, "ab"), begun  # noqa: SIM115 - open as long as the journal is
