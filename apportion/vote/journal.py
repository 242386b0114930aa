"""Finished questions on disk: JSON lines beside the settings that they were answered with.

Each line is flushed to the disk before the next question is counted, so a run may die at any moment. The next run cuts
a torn last line and goes on. A lock beside the file allows one run at a time.
"""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apportion.runs.folder import check_settings, hold_lock
from apportion.runs.whole_files import is_file, write_whole
from apportion.toml import ConfigError
from apportion.untrusted import TABLE_BYTES, check_file, parse_json, read_config, shown
from apportion.vote.ballot import Ballot

MAY_CHANGE = ("apportion", "base_url")
"""Settings that another run may change: a newer version, or the same model served at another address."""

BEGINNING = b'{"id": '
"""The first bytes of every answer."""


class JournalError(ValueError):
    """Answers that cannot be read, written or continued: what, where, and what to do, in one line."""


class Journal:
    """The answers at ``path``, continued under ``settings``, or begun again with ``overwrite``.

    ``ballots`` are the finished questions by id. Raises JournalError, and changes nothing, if another run has the file
    open, if it was started with other settings, or if it holds something other than answers.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        check_path(path)
        self.path = path
        self.ballots: dict[str, Ballot] = {}
        with ExitStack() as stack:
            self._file = self._open(stack)
            if overwrite:
                _check_answers(path)
                self._file.truncate(0)
            self.ballots, whole = _read(path, settings)
            if not self.ballots:
                _write_settings(path, settings)
            try:
                self._file.truncate(whole)
                if whole and _last_byte(path) != b"\n":
                    self._write(b"\n")
            except OSError as error:
                raise _unwritable(path, error) from error
            self._stack = stack.pop_all()

    def append(self, ballot: Ballot) -> None:
        """Write one finished question, and return when it is on the disk."""
        if ballot.id in self.ballots:
            raise JournalError(f"a question is written once, got {ballot.id!r} again for {self.path}; drop the second")
        try:
            self._write(ballot.to_json().encode() + b"\n")
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(
                f"an answer cannot be written to {self.path} ({error.strerror or error}); "
                "make room, then run the same command again"
            ) from error
        self.ballots[ballot.id] = replace(ballot, completions=())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _open(self, stack: ExitStack) -> FileIO:
        """Lock and open the file until ``stack`` closes."""
        try:
            stack.enter_context(hold_lock(_lock_path(self.path)))
            return stack.enter_context(self.path.open("ab", buffering=0))
        except BlockingIOError as error:
            raise JournalError(
                f"one run writes to a file at a time, got {self.path}, which another has open; wait, or change the path"
            ) from error
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _write(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]


def read_finished(path: Path, settings: Mapping[str, Any]) -> dict[str, Ballot]:
    """Return the finished questions at ``path`` by id, none if there is no file. Take no lock and change nothing.

    Raises JournalError as ``Journal`` does.
    """
    check_path(path)
    return _read(path, settings)[0]


def check_path(path: Path) -> None:
    """Raise JournalError unless ``path`` is a .jsonl file in a folder that exists, or could be one."""
    if path.suffix != ".jsonl":
        raise JournalError(f"answers are written as .jsonl, got {shown(str(path))}; rename it")
    if not path.parent.is_dir():
        raise JournalError(f"answers must go to a file in a folder that exists, got {path}; make the folder")
    try:
        for each in (path, settings_path(path), _lock_path(path)):
            is_file(each)
    except ValueError as error:
        raise JournalError(str(error)) from error


def settings_path(path: Path) -> Path:
    """Return where the settings of the answers at ``path`` are: ``answers.run.json`` beside ``answers.jsonl``."""
    return path.with_suffix(".run.json")


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")


def _unwritable(path: Path, error: OSError) -> JournalError:
    return JournalError(f"answers cannot be written to {path} ({error.strerror or error}); change the path")


def _read(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, Ballot], int]:
    """Return the ballots and the number of bytes that they take. A torn last line is not among them."""
    try:
        check_file(path, TABLE_BYTES)
        content = path.read_bytes()
    except FileNotFoundError:
        return {}, 0
    except OSError as error:
        raise JournalError(
            f"answers cannot be read from {path} ({error.strerror or error}); change the path"
        ) from error
    ballots: dict[str, Ballot] = {}
    whole = 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            ballot = Ballot.from_json(line)
        except ValueError as error:
            begins = BEGINNING.startswith(line[: len(BEGINNING)])  # else it may be a file of something else
            if number == len(lines) and not line.endswith(b"\n") and begins:
                break
            raise JournalError(
                f"{path} must hold answers of apportion vote, got something else in line {number}; "
                "remove that line, or choose another file"
            ) from error
        if ballot.id in ballots:
            raise JournalError(f"{path} must hold a question once, got {ballot.id!r} again in line {number}; remove it")
        ballots[ballot.id] = ballot
        whole += len(line)
    if ballots:
        _compare(path, settings)
    return ballots, whole


def _check_answers(path: Path) -> None:
    """Raise JournalError if the first line at ``path`` is whole and no answer, because it may be the questions."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        if line.endswith(b"\n"):
            Ballot.from_json(line)
    except ValueError as error:
        raise JournalError(
            f"{path} must hold answers of apportion vote to be overwritten, got something else in line 1; "
            "choose another file, or remove it"
        ) from error


def _compare(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise JournalError if the answers were started with other settings."""
    try:
        started = parse_json(read_config(settings_path(path)))
        if not isinstance(started, dict):
            raise ValueError(f"settings are a JSON object, got {type(started).__name__}")
    except (OSError, ValueError) as error:
        raise JournalError(
            f"{path} holds answers, and {settings_path(path).name} must say under which settings, got none; "
            "restore it, choose another file, or overwrite"
        ) from error
    remedy = "use the same settings, choose another file, or overwrite"
    try:
        check_settings(path, started, settings, remedy, MAY_CHANGE)
    except ConfigError as error:
        raise JournalError(str(error)) from error


def _write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    target = settings_path(path)
    try:
        write_whole(target, json.dumps(settings, indent=1) + "\n")
    except OSError as error:
        raise JournalError(f"settings cannot be written to {target} ({error.strerror or error}); make room") from error


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)
