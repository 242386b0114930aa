"""The files of a run: which they are, and their bytes within bounds."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from apportion import tables
from apportion.records.rollout_log import RecordError
from apportion.tables import Rows
from apportion.untrusted import LINE_CHARACTERS, TABLE_BYTES, check_file, parse_json, shown

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet", ".json", ".eval")
DOCUMENTS = (".json", ".eval")
"""Files that are one JSON document, or an archive of them."""
DOCUMENT_BYTES = 2**30
PACKED_TIMES, PACKED_BYTES = 250, 2**26
"""A .gz file may unpack to so many times its size, and to so many bytes in any case."""

CHUNK = 2**24
"""Bytes that are read together."""


_FULL = re.compile(rb"[^\n]+")


@dataclass(frozen=True)
class Piece:
    """Whole lines of a file: the number of the first, from 1, how many there are, and their bytes."""

    line: int
    lines: int
    content: bytes

    def rows(self) -> int:
        """Return how many lines are not blank."""
        return sum(1 for found in _FULL.finditer(self.content) if found[0].strip())


def kind_of(path: Path) -> str:
    """Return the suffix of ``path`` that says its format, without ``.gz``; "" if it is another one."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def files_of(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of a run at ``paths``, in the order of their numbers, and the files that are left out.

    Of TRL's output folder the folder ``completions`` is read. Of prime-rl's, rollouts of evaluations are left out, and
    those that entered a batch if all rollouts are there too.
    """
    found, left = [], []
    for path in paths:
        if not path.exists():
            raise RecordError(f"a run must exist, got {path}; check the path")
        if not path.is_dir():
            found.append(path)
            continue
        inside = path / "completions"
        folder = inside if inside.is_dir() and list(inside.glob("completions_*.parquet")) else path
        prime = sorted(each for each in folder.rglob("*.jsonl") if _is_prime(each))
        files = prime or [each for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")]
        chosen = [each for each in files if kind_of(each) and (not prime or _is_wanted(each))]
        tables = [each for each in chosen if kind_of(each) not in DOCUMENTS]
        chosen = tables or [each for each in chosen if kind_of(each) == ".eval"]
        if not chosen:
            raise RecordError(
                f"a folder must have files that end in {', '.join(SUFFIXES)}, got none in {path}; check the path, or "
                "log the next run: TRL by log_completions=True, verl by trainer.rollout_data_dir"
            )
        found += sorted(chosen, key=_natural)
        left += [each for each in files if each not in set(chosen)]
    if len({each.resolve() for each in found}) < len(found):
        raise RecordError("a file must be given once, got one twice; give a folder or its files")
    return found, left


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise RecordError in the place of the errors of a file that cannot be read."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise RecordError(f"a run must be UTF-8, got {path} ({error.reason}); save it as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RecordError(f"a run must be readable, got {path} ({reason}); check the file") from error


def open_bytes(path: Path) -> BinaryIO:
    """Open the file for reading, unpacked within bounds. Raise OSError for a pipe, a device or a file of many GiB."""
    check_file(path, TABLE_BYTES)
    if path.suffix.lower() != ".gz":
        return path.open("rb")
    most = min(TABLE_BYTES, max(PACKED_BYTES, PACKED_TIMES * path.stat().st_size))
    return io.BufferedReader(_Bounded(gzip.open(path), most), CHUNK)


class _Bounded(io.RawIOBase):
    """An unpacked file that ends with an error after ``left`` bytes."""

    def __init__(self, file: Any, left: int) -> None:
        self._file, self._left, self._most = file, left, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(len(buffer))
        self._left -= len(found)
        if self._left < 0:
            raise OSError(f"it unpacks to more than {self._most:,} bytes; unpack it first")
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def chunks(path: Path, size: int = CHUNK) -> Iterator[Piece]:
    """Yield the file in pieces of whole lines, of about ``size`` bytes each. A byte order mark is left out.

    Raises OSError for a line of more than ``LINE_CHARACTERS``.
    """
    with open_bytes(path) as file:
        content, line = file.read(size).removeprefix(b"\xef\xbb\xbf"), 1
        while content:
            if not content.endswith(b"\n"):
                content += file.readline(LINE_CHARACTERS)
                if len(content) - content.rfind(b"\n") > LINE_CHARACTERS:
                    raise OSError(f"it has a line of {LINE_CHARACTERS:,} bytes or more")
            lines = content.count(b"\n") + (not content.endswith(b"\n"))
            yield Piece(line, lines, content)
            line += lines
            content = file.read(size)


def json_rows(path: Path, piece: Piece) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a piece, each with its line.

    Raises RecordError for anything else than one object a line.
    """
    number, counted = piece.line, 0
    for found in _FULL.finditer(piece.content):
        number, counted = number + piece.content.count(b"\n", counted, found.start()), found.start()
        text = found[0]
        if not text.strip():
            continue
        try:
            row = _parsed(text.decode())
        except UnicodeDecodeError as error:
            raise RecordError(
                f"a run must be UTF-8, got other bytes in {path} line {number}; save it as UTF-8"
            ) from error
        except ValueError as error:
            raise RecordError(
                f"a line must be JSON, got {error} in {path} line {number}; correct or remove it"
            ) from error
        if not isinstance(row, dict):
            raise RecordError(f"a line must be a JSON object, got {shown(row)} in {path} line {number}; correct it")
        yield number, row


def _parsed(text: str) -> Any:
    """Return what a line says. NaN is read as a number here, because tools write it in columns that nobody reads."""
    try:
        return parse_json(text)
    except ValueError as error:
        if not str(error).startswith(("NaN", "Infinity", "-Infinity")):
            raise
        return json.loads(text)


def document_of(path: Path) -> Any:
    """Return the JSON document in the file; of an archive of inspect_ai, all its samples. Raise RecordError."""
    check_file(path, DOCUMENT_BYTES)
    try:
        if kind_of(path) == ".json":
            with open_bytes(path) as file:
                content = file.read(DOCUMENT_BYTES + 1)
            if len(content) > DOCUMENT_BYTES:
                raise RecordError(f"{path} must unpack to at most {DOCUMENT_BYTES:,} bytes; save it as JSON lines")
            return _parsed(content.decode("utf-8-sig"))
        with zipfile.ZipFile(path) as archive:
            names = [each for each in archive.infolist() if each.filename.startswith("samples/")]
            if sum(each.file_size for each in names) > DOCUMENT_BYTES:
                raise RecordError(f"{path} must unpack to at most {DOCUMENT_BYTES:,} bytes; write a smaller log")
            samples = [_parsed(archive.read(each).decode()) for each in sorted(names, key=lambda each: each.filename)]
            return {"eval": {}, "samples": samples}
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise RecordError(
            f"{path} must be a log of inspect_ai, got {error}; convert it by inspect log convert --to json"
        ) from error
    except ValueError as error:
        if isinstance(error, (RecordError, UnicodeDecodeError)):
            raise
        raise RecordError(f"{path} must be one JSON document, got {error}; name JSON lines .jsonl") from error


def csv_rows(path: Path) -> Rows:
    """Yield the rows of a CSV file with a header, each with its line. Raise RecordError if it is not CSV."""
    with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        yield from tables.csv_rows(path, file, RecordError)


def _natural(path: Path) -> list[Any]:
    """Return what sorts paths by the numbers in them: 9.jsonl before 10.jsonl."""
    return [
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in re.split(r"([0-9]{1,18})", str(path))
    ]


def _is_prime(path: Path) -> bool:
    return path.name == "traces.jsonl" or path.name.endswith("_rollouts.jsonl") or "eval_rollouts" in path.name


def _is_wanted(path: Path) -> bool:
    """Return whether a file of prime-rl has rollouts of training, and no other file has them too."""
    if path.name != "traces.jsonl":
        return path.name == "train_rollouts.jsonl"
    kept, kind = path.parent.name, path.parent.parent.name
    whole = path.parent.parent / "all" / path.name
    return kind != "eval" and kept != "eval" and not (kept == "effective" and whole.exists())
