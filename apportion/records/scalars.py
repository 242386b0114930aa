"""What a training framework logged of each step, in place of rollouts: TRL, verl, TensorBoard and W&B.

Single prompts are unknown there. The means of steps still say how many groups were dead, whether completions were cut,
and whether the policy left its start.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from apportion.checks import LARGEST_INTEGER
from apportion.records.importing.files import document_of, natural, rows_of
from apportion.records.importing.names import USUAL
from apportion.records.rollout_log import RecordError
from apportion.rows import reading
from apportion.types import Counts, Floats
from apportion.untrusted import TABLE_BYTES, check_file, parse_number

SERIES = {
    "reward": (
        *("reward", "critic/score/mean", "critic/rewards/mean", "reward/mean", "rewards/mean"),
        "env/all/reward/total",
    ),
    "dead": ("frac_reward_zero_std", "env/all/by_group/frac_all_bad"),
    "cut": ("completions/clipped_ratio", "response_length/clip_ratio"),
    "length": ("completions/mean_length", "response_length/mean", "env/all/ac_tokens_per_turn"),
    "kl": ("kl", "actor/kl_loss", "critic/kl", "optim/kl_sample_train_v1"),
    "entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "optim/entropy"),
    "gradient": ("grad_norm", "actor/grad_norm"),
}
"""Names under which frameworks log a series, the likeliest first."""

PROMPTS = {name for role in ("prompt", "id") for name in (role, *USUAL[role])}
TABLES, LEAST_OF_A_TABLE = (".jsonl", ".ndjson", ".csv"), 2
"""Files that may be something else, and the series that one must have to be a log of steps."""

STEPS = ("step", "_step", "global_step", "training/global_step", "Step", "progress/batch")
LOG_ROLLOUTS = (
    "single prompts are unknown; log the next run: TRL by log_completions=True, verl by trainer.rollout_data_dir, or "
    "rollout_log in apportion"
)
PATTERNS = (
    *("trainer_state.json", "checkpoint-*/trainer_state.json", "**/events.out.tfevents.*", "**/*.wandb"),
    "metrics.jsonl",
)
"""Files with series in a folder, those that say most first."""
LARGEST_VALUE = 1e300
HEADER, EVENT_LIMIT = 12, 2**26
"""Bytes before the content of an event, and the most bytes of one."""
BLOCK = 2**15
"""Bytes of a block of a W&B file."""


@dataclass(frozen=True, eq=False)
class Scalars:
    """Series of a run: the steps [S] and the values [S] of each, by the framework's name.

    Args:
        name: what the run is called.
        source: what wrote it.
        found: name -> steps and values, in the order of steps, finite values only.
    """

    name: str
    source: str
    found: Mapping[str, tuple[Counts, Floats]]

    def series(self, name: str) -> tuple[Counts, Floats] | None:
        """Return the steps and values of a key of ``SERIES``; None if it was not logged."""
        return next((self.found[each] for each in SERIES[name] if each in self.found), None)

    @property
    def components(self) -> dict[str, tuple[Counts, Floats]]:
        """The mean of each reward function, if there are several."""
        found = {
            name.removeprefix("rewards/").removesuffix("/mean"): series
            for name, series in self.found.items()
            if name.startswith("rewards/") and name.count("/") == 2 and name.endswith("/mean")
        }
        return found if len(found) > 1 else {}


class ScalarsOnlyError(RecordError):
    """A file has means of steps, which are ``scalars``, and no rollouts."""

    def __init__(self, path: Path, scalars: Scalars) -> None:
        super().__init__(
            f"a run must have rollouts, got {scalars.source} with means of steps in {path}; {LOG_ROLLOUTS}"
        )
        self.scalars = scalars


def scalars_at(path: str | Path) -> Scalars | None:
    """Return the series at ``path``; None if it holds none that are known.

    It is a file or folder of TRL's trainer state, of TensorBoard, of verl's or tinker-cookbook's metrics as JSON lines,
    or of W&B: an export of its history, or a local run. Raises RecordError for a damaged one.
    """
    path = Path(path)
    files, others = _files_of(path)
    if not files:
        return None
    with reading(files[-1], RecordError):
        source, rows = zip(*map(_rows_of, files), strict=True)
        said = f"{source[0]} of {files[0].parent.name}, the newest of {others + 1} folders" if others else source[0]
        found = scalars_of(path.resolve().name.partition(".")[0] or "run", said, chain(*rows))
    if found is None:
        return None
    known = {name for names in SERIES.values() for name in names} & found.found.keys()
    return None if len(known) < (LEAST_OF_A_TABLE if files[0].suffix in TABLES else 1) else found


def scalars_of(name: str, source: str, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Scalars | None:
    """Return the series of a run in ``rows``, each a step and its values; None if a row is a rollout."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step, row in rows:
        if PROMPTS & row.keys():  # rollouts, which may be many
            return None
        for key, value in row.items():
            if type(value) in (int, float) and abs(value) <= LARGEST_VALUE and abs(step) <= LARGEST_INTEGER:
                found.setdefault(key.removeprefix("train/"), []).append((step, float(value)))
    series = {
        key: (np.array([step for step, _ in own], np.int64), np.array([value for _, value in own]))
        for key, values in found.items()
        if (own := sorted(dict(values).items()))
    }
    return Scalars(name, source, series)


def _files_of(path: Path) -> tuple[list[Path], int]:
    """Return the files with series at ``path``, in order, and how many folders below have others.

    Of several checkpoints the last has all steps. A run that was resumed has several files in one folder.
    """
    if not path.is_dir():
        return [path] if path.exists() else [], 0
    for pattern in PATTERNS:
        found = sorted({each.resolve() for each in path.glob(pattern) if each.is_file()}, key=natural)
        if found and pattern.startswith("checkpoint"):
            return found[-1:], 0
        if found:
            newest = max(found, key=lambda each: each.stat().st_mtime).parent
            return [each for each in found if each.parent == newest], len({each.parent for each in found}) - 1
    return [], 0


def _rows_of(path: Path) -> tuple[str, Iterable[tuple[int, Mapping[str, Any]]]]:
    """Return what wrote the file, and its rows, each with its step; none of a file that is unknown."""
    name = path.name.lower()
    if "tfevents" in name:
        return "TensorBoard events", _events(path)
    if name.endswith(".wandb"):
        return "W&B run", _wandb(path)
    if name.endswith((".jsonl", ".ndjson")):
        return "metrics as JSON lines", _metrics(path)
    if name.endswith(".csv"):
        names = next((row for _, row in rows_of(path)), {})
        runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in names if " - " in name))
        said = f" of {runs[0]}, the first of {len(runs)} runs" if len(runs) > 1 else ""
        return f"exported history{said}", _exported(path, runs[:1])
    document = document_of(path) if name.endswith(".json") else None
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        return "", ()
    return "TRL's trainer state", [(row["step"], row) for row in history if type(row.get("step")) is int]


def _metrics(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows of metrics, whose values may lie under ``data``, as verl writes them."""
    for number, row in rows_of(path):
        inner = row.get("data")
        values = inner if isinstance(inner, dict) else row
        steps = [each[key] for each in (row, values) for key in STEPS if type(each.get(key)) is int]
        yield (steps[0] if steps else number), values


def _exported(path: Path, run: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows of a history that was exported as CSV. W&B puts the ``run`` before each name: ``run - name``."""
    for number, row in rows_of(path):
        made: dict[str, Any] = {}
        for name, cell in row.items():
            own, separator, series = name.rpartition(" - ")
            with suppress(ValueError):  # a text, which is no series
                if not separator or own in run:
                    made[series] = parse_number(cell)
        step = next((made[key] for key in STEPS if key in made), number)
        if abs(step) <= LARGEST_INTEGER:
            yield int(step), made


def _events(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the values of each event of TensorBoard. A last event that is half written ends it."""
    check_file(path, TABLE_BYTES)
    with path.open("rb") as file:
        while len(header := file.read(HEADER)) == HEADER:
            (length,) = struct.unpack("<Q", header[:8])
            if length > EVENT_LIMIT:
                raise RecordError(f"{path} must be events of TensorBoard, got an event of {length:,} bytes; check it")
            content = file.read(length + 4)
            if len(content) < length + 4:
                return
            event = _fields(content[:length], path)
            step = next((value for field, value in event if field == 2 and isinstance(value, int)), 0)
            entries = [dict(each) for summary in _messages(event, path, 5) for each in _messages(summary, path)]
            values: dict[str, float] = {}
            for entry in entries:
                match entry:
                    case {1: bytes(tag), 2: float(value)}:
                        values[tag.decode(errors="replace")] = value
            if values:
                yield step, values


def _wandb(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the history in a local file of W&B: records of protocol buffers in the blocks of a LevelDB log."""
    check_file(path, TABLE_BYTES)
    content, place, parts = path.read_bytes(), 7, []
    while place + 7 <= len(content):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind not in (1, 4):  # first or middle part of a record
            continue
        record, parts = b"".join(parts), []
        for history in _messages(_fields(record, path), path, 2):
            row: dict[str, Any] = {}
            for item in map(dict, _messages(history, path)):
                name, value = item.get(1) or item.get(2), item.get(16)
                if isinstance(name, bytes) and isinstance(value, bytes):
                    with suppress(ValueError):  # not JSON
                        row[name.decode(errors="replace")] = json.loads(value)
            if type(row.get("_step")) is int:
                yield row["_step"], row


Fields = list[tuple[int, int | float | bytes]]
"""The fields of a message of protocol buffers, each with its number."""


def _messages(fields: Fields, path: Path, number: int | None = None) -> list[Fields]:
    """Return the messages in the fields of this number, or in all."""
    found = [value for field, value in fields if number in (None, field)]
    return [_fields(value, path) for value in found if isinstance(value, bytes)]


def _fields(content: bytes, path: Path) -> Fields:
    found: Fields = []
    place = 0
    try:
        while place < len(content):
            key, place = _varint(content, place)
            field, kind = key >> 3, key & 7
            if kind == 0:
                value, place = _varint(content, place)
                found.append((field, value))
                continue
            length = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                length, place = _varint(content, place)
            part = content[place : place + length]
            if kind not in (1, 2, 5) or len(part) < length:
                raise IndexError
            found.append((field, part if kind == 2 else float(struct.unpack("<d" if kind == 1 else "<f", part)[0])))
            place += length
    except IndexError as error:
        raise RecordError(f"{path} must be as it was written, got damaged content; copy it again") from error
    return found


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise IndexError
