"""Finished questions on disk, each at once: JSON lines beside the settings that they were answered with.

A line is written and flushed to the disk before the next question is counted, so a run may die at any moment; the next
one cuts a torn last line and goes on. One run at a time: the file is locked while it is open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apportion.files import lock, write_whole
from apportion.vote.ballot import Ballot

ABSENT = "nothing"
ONLY_RECORDED = ("apportion", "base_url")
"""Settings that another run may change: a newer version, or the same model served at another address."""


class JournalError(ValueError):
    """Answers that cannot be read, written or continued: what, where, and what to do, in one line."""


class Journal:
    """The answers at ``path``, to be continued under ``settings``, or begun afresh with ``overwrite``.

    ``ballots`` are those finished so far, by id. Raises JournalError where another run has the file open, where it was
    begun under other settings, and where what would be overwritten is no answers; nothing is changed then.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        check_path(path)
        self.path = path
        self.ballots: dict[str, Ballot] = {}
        self._file = self._locked()
        try:
            if overwrite:
                _check_answers(path)
                self._cut(0)
            self.ballots, whole = _read(path, settings)
            if not self.ballots:
                _write_settings(path, settings)
            self._cut(whole)
        except BaseException:
            self._file.close()
            raise

    def append(self, ballot: Ballot) -> None:
        """Writes one finished question, and returns when it is on the disk."""
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
        self._file.close()

    def _locked(self) -> FileIO:
        try:
            file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise JournalError(
                f"answers cannot be written to {self.path} ({error.strerror or error}); change the path"
            ) from error
        try:
            lock(file)
        except BlockingIOError as error:
            file.close()
            raise JournalError(
                f"one run writes to a file at a time, got {self.path}, which another has open; wait, or change the path"
            ) from error
        return file

    def _cut(self, size: int) -> None:
        """Leaves the first ``size`` bytes, and ends them with a line break."""
        self._file.truncate(size)
        if size and _last_byte(self.path) != b"\n":
            self._write(b"\n")

    def _write(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]


def finished(path: Path, settings: Mapping[str, Any]) -> dict[str, Ballot]:
    """The finished questions at ``path`` by id, none where there is no file; changes nothing.

    Raises JournalError as ``Journal`` does, but for the lock.
    """
    check_path(path)
    return _read(path, settings)[0]


def check_path(path: Path) -> None:
    """Raises JournalError unless ``path`` is a .jsonl file in a folder that is there."""
    if path.suffix != ".jsonl":
        raise JournalError(f"answers are written as .jsonl, got {str(path)!r}; rename it")
    if path.is_dir() or not path.parent.is_dir():
        raise JournalError(f"answers must go to a file in a folder that is there, got {path}; make the folder")


def settings_path(path: Path) -> Path:
    """Where the settings of the answers at ``path`` are: ``answers.run.json`` beside ``answers.jsonl``."""
    return path.with_suffix(".run.json")


def _read(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, Ballot], int]:
    """The ballots, and the bytes that they take; what follows is a torn line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}, 0
    except OSError as error:
        raise JournalError(f"answers cannot be read from {path} ({error.strerror or error}); change it") from error
    ballots: dict[str, Ballot] = {}
    whole = 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            ballot = Ballot.from_json(line)
        except ValueError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise JournalError(
                f"{path} must hold answers of apportion vote, got another thing in line {number}; "
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
    """Raises JournalError where the first line at ``path`` is whole and no answer: it may be the questions."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        if line.endswith(b"\n"):
            Ballot.from_json(line)
    except ValueError as error:
        raise JournalError(
            f"{path} must hold answers of apportion vote to be overwritten, got another thing in line 1; "
            "choose another file, or remove it"
        ) from error


def _compare(path: Path, settings: Mapping[str, Any]) -> None:
    """Raises JournalError where the answers were begun under other settings; names the first."""
    try:
        begun = json.loads(settings_path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise JournalError(
            f"{path} holds answers, and {settings_path(path).name} must say under which settings, got none; "
            "restore it, choose another file, or overwrite"
        ) from error
    given = _plain(settings)
    for name in dict.fromkeys([*given, *begun]):
        if name not in ONLY_RECORDED and given.get(name, ABSENT) != begun.get(name, ABSENT):
            raise JournalError(
                f"{path} was begun with {name} {begun.get(name, ABSENT)!r}, got {given.get(name, ABSENT)!r}; "
                "use the same settings, choose another file, or overwrite"
            )


def _write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Replaces the settings."""
    target = settings_path(path)
    try:
        write_whole(target, json.dumps(_plain(settings), indent=1) + "\n")
    except OSError as error:
        raise JournalError(f"settings cannot be written to {target} ({error.strerror or error}); make room") from error


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` as they come back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)
