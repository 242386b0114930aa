"""A file of JSON lines that only grows. A kill leaves at most a torn last line, which the next writer cuts."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from apportion.untrusted import TABLE_BYTES, check_file, parse_json

Record = TypeVar("Record")

BEGINNING = b'{"id": '
"""First bytes of every line. They tell a torn line of ours from the line of another file."""

LINE_BYTES = 2**28
"""The longest line: 256 MiB."""


class JournalError(ValueError):
    """Answers that cannot be read, written or continued: what, where, and what to do, in one line."""


def sealed(record: Mapping[str, Any]) -> str:
    """Return ``record`` as one line of JSON with a checksum as its last field.

    >>> sealed({"id": "a"})
    '{"id": "a", "checksum": "85e59075"}'
    """
    return json.dumps({**record, "checksum": _checksum(record)}, allow_nan=False)


def unsealed(line: str) -> dict[str, Any]:
    """Parse a line of ``sealed`` and verify its checksum. Raise ValueError for any other line."""
    record = parse_json(line)
    if not isinstance(record, dict):
        raise ValueError("not a record")
    if record.pop("checksum", None) != _checksum(record):
        raise ValueError("a line that was changed")
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, allow_nan=False).encode(), digest_size=4).hexdigest()


def read_records(path: Path, read: Callable[[str], Record], what: str) -> Iterator[tuple[Record, int, int]]:
    """Yield each record at ``path``, the number of its line, and the offset at which it ends; nothing without a file.

    A torn last line is left out; a last line that is whole JSON was not torn. ``what`` names the records in errors.
    Raises JournalError.
    """
    try:
        check_file(path, TABLE_BYTES)
        with path.open("rb") as file:
            number, end = 0, 0
            while line := file.readline(LINE_BYTES):
                number, end = number + 1, end + len(line)
                try:
                    record = read(line.decode())
                except ValueError as error:
                    if _is_torn(line) and not file.read(1):
                        return
                    raise JournalError(
                        f"{path} must hold {what} of apportion vote, got something else in line {number}; "
                        "remove that line, or choose another file"
                    ) from error
                yield record, number, end
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"{what} cannot be read from {path} ({error.strerror or error}); change the path") from error


def _is_torn(line: bytes) -> bool:
    """Return whether ``line`` is the beginning of a line of ours, or zeros, as a loss of power leaves them."""
    if line.endswith(b"\n") or not BEGINNING.startswith(line.rstrip(b"\0")[: len(BEGINNING)]):
        return False
    try:
        parse_json(line)
    except ValueError:
        return True
    return False


class LineWriter:
    """Appends lines to ``path``, of which the first ``whole`` bytes are kept. Raises JournalError.

    What a full disk took of a line is cut at once, so that no further line is joined to it.
    """

    def __init__(self, path: Path, whole: int, what: str) -> None:
        self.path, self._what = path, what
        try:
            self._file = path.open("a+b", buffering=0)
            self._file.truncate(whole)
            if whole:
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":
                    self._write(b"\n")
        except OSError as error:
            raise unwritable(path, error) from error

    def append(self, lines: str, *, to_disk: bool) -> None:
        """Write lines. They survive a kill of the process, and with ``to_disk`` a loss of power."""
        before = os.fstat(self._file.fileno()).st_size
        try:
            self._write(lines.encode() + b"\n")
            if to_disk:
                os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(before)
            raise self._failed(error) from error

    def flush(self) -> None:
        """Wait until all lines are on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file, and remove it if it is empty."""
        empty = os.fstat(self._file.fileno()).st_size == 0
        self._file.close()
        if empty:
            remove_if_possible(self.path)

    def _failed(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self._what} cannot be written to {self.path} ({error.strerror or error}); "
            "make room, then run the same command again"
        )

    def _write(self, lines: bytes) -> None:
        while lines:
            lines = lines[self._file.write(lines) :]


def remove_if_possible(path: Path) -> None:
    """Remove a file without useful content. On a read-only disk it stays, because nothing reads it."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError) -> JournalError:
    """Return the error for a file that cannot be opened for writing."""
    return JournalError(f"answers cannot be written to {path} ({error.strerror or error}); change the path")
