"""What a training framework logged of each step, in place of rollouts: TRL, verl, TensorBoard and W&B.

Single prompts are unknown there. The means of steps still say how many groups were dead, whether completions were cut,
and whether the policy left its start.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from apportion.checks import LARGEST_INTEGER
from apportion.records.importing.files import document_of, natural, rows_of
from apportion.records.importing.names import KEYS, USUAL
from apportion.records.importing.prime_rl import inside
from apportion.records.rollout_log import RecordError
from apportion.rows import Rows, reading
from apportion.types import Counts, Floats
from apportion.untrusted import TABLE_BYTES, check_file, parse_number

SERIES = {
    name: tuple(names.split())
    for name, names in {
        "reward": "reward score raw_reward task_reward rewards scores reward/total",
        "dead": "frac_reward_zero_std",
        "all right": "by_group/frac_all_good solve_all",
        "all wrong": "by_group/frac_all_bad solve_none",
        "mixed": "by_group/frac_mixed",
        "spread": "reward_std",
        "cut": "clipped_ratio response_length/clip_ratio is_truncated truncated_ratio",
        "length": "length completion_length response_length response_len num_tokens ac_tokens_per_turn",
        "longest": "max_length response_length/max response_len/max",
        "kl": "kl kl_loss policy_kl reward_kl_penalty kl_policy_base",
        "entropy": "entropy entropy_loss policy_entropy",
        "gradient": "grad_norm raw_grad_norm",
        "loss": "loss pg_loss policy_loss final_loss",
    }.items()
}
"""Plain names of each series, the likeliest first. ``plain_name`` derives them from a framework's names.

The KL divergence is that from the reference policy. That between the sampler and the trainer is another quantity.
"""

_SECTIONS = re.compile(
    r"^(?:(?:train|rollout|critic|actor|ppo_actor|policy|env|all|objective|optim|update|completions|generate)/)+"
)
_MEAN = re.compile(r"(?:^|/)(?:mean|avg|all)(?=/|$)|(?<![a-z])(?:mean|avg)_|_(?:mean|avg)(?=/|$)")
"""Sections under which frameworks log, and their words for a mean."""

VERDICTS = {*USUAL["correct"], *USUAL["share"][1:]}
PART = re.compile(r"rewards?/(?!total$|std$|min$|max$)([^/]+)")
HELD_OUT = re.compile(r"(?:^|/)acc/mean@[0-9]+$")
"""Names of verdicts, of parts of a reward, and of verl's accuracy on held-out problems."""

NOT_FINITE = {"NaN": math.nan, "nan": math.nan, "Infinity": math.inf, "inf": math.inf, "-Infinity": -math.inf}
"""How W&B writes NaN and infinite numbers."""

TABLES, LEAST_OF_A_TABLE, MOST_AGAIN = (".jsonl", ".ndjson", ".csv"), 2, 2
"""Files that may be something else; the series that one of several columns must have to be a log of steps, and how
often a step comes again."""
CHART = "W&B export"
"""Tells W&B's chart exports, with ``run - name`` above the columns. A chart may have one series."""
LEAST_OF_A_CHART = 8
"""Least number of steps in a table of one series that nothing else marks as a chart."""
OF_TENSORBOARD = {"Wall time", "Step", "Value"}
"""The columns of a chart that TensorBoard exports: its file is called run-NAME-tag-SERIES.csv."""

STEPS = ("step", "_step", "global_step", "training/global_step", "Step", "progress/batch")
LOG_ROLLOUTS = (
    "single prompts are unknown; log the next run: TRL by log_completions=True, verl by trainer.rollout_data_dir, or "
    "rollout_log in apportion"
)
PATTERNS = (
    "trainer_state.json",
    "checkpoint-*/trainer_state.json",
    "**/events.out.tfevents.*",
    "metrics.jsonl",
)
"""File patterns of series in a folder, the most informative first."""
LARGEST_VALUE = 1e300
HEADER, EVENT_LIMIT = 12, 2**26
"""Bytes before the content of a TensorBoard event, and the most bytes of an event."""


def plain_name(name: str) -> str:
    """Return the name of a series without the section that it was logged under, and without the word for a mean.

    >>> [plain_name(name) for name in ("train/critic/score/mean", "completions/mean_length", "reward/all/mean")]
    ['score', 'length', 'reward']
    """
    return _MEAN.sub("", _SECTIONS.sub("", name.lower())).strip("/")


@dataclass(frozen=True, eq=False)
class Scalars:
    """Series of a run: the steps [S] and the values [S] of each, by the framework's name.

    Args:
        name: what the run is called.
        source: what wrote it.
        found: name -> steps and values, in the order of steps. Values may be nan or infinite.
    """

    name: str
    source: str
    found: Mapping[str, tuple[Counts, Floats]]

    @cached_property
    def _plain(self) -> dict[str, str]:
        """The framework's name of each plain name, the first if there are several."""
        found: dict[str, str] = {}
        for name in self.found:
            found.setdefault(plain_name(name), name)
        return found

    def logged(self, name: str) -> tuple[Counts, Floats] | None:
        """Return the steps and values of a key of ``SERIES`` as they were logged; None if it was not."""
        return next((self.found[self._plain[each]] for each in SERIES[name] if each in self._plain), None)

    def series(self, name: str) -> tuple[Counts, Floats] | None:
        """Return the steps and the finite values of a key of ``SERIES``; None if there are none.

        Dead groups are those that are all right and those that are all wrong, or all that are not mixed.
        All are dead if the standard deviation of the reward is 0 at every step.
        """
        found = self.logged(name)
        if name == "dead" and found is None:
            right, wrong, mixed, spread = map(self.series, ("all right", "all wrong", "mixed", "spread"))
            if right and wrong and np.array_equal(right[0], wrong[0]):
                found = right[0], right[1] + wrong[1]
            elif mixed:
                found = mixed[0], 1 - mixed[1]
            elif spread and not spread[1].any():
                found = spread[0], np.ones(len(spread[0]))
        if name == "reward" and found is None and len(self.components) == 1:
            found = next(iter(self.components.values()))
        return None if found is None else _finite(*found)

    @cached_property
    def components(self) -> dict[str, tuple[Counts, Floats]]:
        """The mean of each reward function, and of each verdict."""
        found: dict[str, tuple[Counts, Floats]] = {}
        for plain, name in self._plain.items():
            part, last = PART.fullmatch(plain), plain.rpartition("/")[2].removeprefix("eval_")
            if part or last in VERDICTS or HELD_OUT.search(name):
                known = _finite(*self.found[name])
                found |= {part[1] if part else plain: known} if known else {}
        return found


def _finite(steps: Counts, values: Floats) -> tuple[Counts, Floats] | None:
    known = np.isfinite(values)
    return (steps[known], values[known]) if known.any() else None


class ScalarsOnlyError(RecordError):
    """A file has ``scalars``, the means of steps, and no rollouts."""

    def __init__(self, path: Path, scalars: Scalars) -> None:
        super().__init__(
            f"a run must have rollouts, got {scalars.source} with means of steps in {path}; {LOG_ROLLOUTS}"
        )
        self.scalars = scalars


def scalars_at(path: str | Path) -> Scalars | None:
    """Return the series at ``path``; None if it holds none that are known.

    It is a file or folder of TRL's trainer state, of TensorBoard, of verl's or tinker-cookbook's metrics as JSON lines,
    or an export of W&B. Raises RecordError for a damaged one.
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
    known = len(found.components) + sum(found.logged(each) is not None for each in SERIES)
    of_a_framework = " export" in source[0] or any("/" in each for each in found.found)
    sizes = [len(steps) for each, (steps, _) in found.found.items() if each not in STEPS]
    is_table = files[0].suffix in TABLES and not of_a_framework and (len(sizes) != 1 or sizes[0] < LEAST_OF_A_CHART)
    return None if known < (LEAST_OF_A_TABLE if is_table else 1) else found


def scalars_of(name: str, source: str, rows: Iterable[tuple[float, Mapping[str, Any]]]) -> Scalars | None:
    """Return the series of a run from ``rows``, each a step and its values; None if the rows are rollouts.

    Steps are rounded down, and those that are too large or nan are left out.
    """
    found: dict[str, dict[int, float]] = {}
    again: Counter[str] = Counter()
    for step, row in rows:
        if KEYS & row.keys():  # these are rollouts, which may be many
            return None
        if not abs(step) <= LARGEST_INTEGER:
            continue
        for key, value in row.items():
            value = NOT_FINITE.get(value, value) if isinstance(value, str) else value
            if type(value) in (int, float):
                own, step = found.setdefault(key.removeprefix("train/"), {}), int(step)
                known = abs(value) <= LARGEST_VALUE
                again[key] += step in own
                if known or step not in own:  # another row of the step may lack it
                    own[step] = float(value) if known else math.nan if value != value else math.inf
    if any(again[key] > MOST_AGAIN * len(own) for key, own in found.items()):
        return None  # rollouts without prompts
    series = {
        key: (np.array(sorted(own), np.int64), np.array([own[step] for step in sorted(own)]))
        for key, own in found.items()
    }
    return Scalars(name, source, series)


def _files_of(path: Path) -> tuple[list[Path], int]:
    """Return the files with series at ``path``, in order, and how many folders below have further ones.

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


def _rows_of(path: Path) -> tuple[str, Iterable[tuple[float, Mapping[str, Any]]]]:
    """Return the tool that wrote the file and its rows with their steps; no rows if the file is unknown."""
    name = path.name.lower()
    if "tfevents" in name:
        return "TensorBoard events", _events(path)
    if name.endswith((".jsonl", ".ndjson")):
        return "metrics as JSON lines", _with_steps(rows_of(path))
    if name.endswith(".csv"):
        names = next((row for _, row in rows_of(path)), {})
        if names.keys() == OF_TENSORBOARD:
            series = path.stem.rpartition("-tag-")[2].replace("_", "/", 1)
            return "TensorBoard export", (
                (int(row["Step"]), {series: parse_number(row["Value"])}) for _, row in rows_of(path)
            )
        runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in names if " - " in name))
        said = f"{CHART} of {runs[0]}, the first of {len(runs)} runs" if len(runs) > 1 else CHART
        return said if runs else "exported history", _with_steps(_exported(path, runs[:1]))
    history = inside(document_of(path), "log_history") if name.endswith(".json") else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        return "", ()
    return "TRL's trainer state", [(row["step"], row) for row in history if type(row.get("step")) is int]


def _with_steps(rows: Rows) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield rows of metrics with their step, or else their number. verl puts the values under ``data``."""
    for number, row in rows:
        inner = row.get("data")
        values = inner if isinstance(inner, dict) else row
        steps = [each[key] for each in (row, values) for key in STEPS if type(each.get(key)) in (int, float)]
        yield (steps[0] if steps else number), values


def _exported(path: Path, run: Sequence[str]) -> Rows:
    """Yield rows of a history that was exported as CSV. W&B puts the ``run`` before each name: ``run - name``."""
    for number, row in rows_of(path):
        made: dict[str, Any] = {}
        for name, cell in row.items():
            own, separator, series = name.rpartition(" - ")
            if (not separator or own in run) and not name.endswith(("__MIN", "__MAX")):
                made[series] = cell
                with suppress(ValueError):  # a text, which is no series
                    made[series] = parse_number(cell)
        yield number, made


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
            try:
                step, values = _event(content[:length])
            except (AttributeError, LookupError, TypeError, struct.error) as error:
                raise RecordError(f"{path} must be as it was written, got damaged content; copy it again") from error
            if values:
                yield step, values


def _event(content: bytes) -> tuple[int, dict[str, float]]:
    """Return the step and the values of an event: its fields 2 and 5, whose entries have a tag and a value as 1 and 2.

    Raises one of several errors for anything else.
    """
    step, values = 0, dict[str, float]()
    for field, part in _fields(content):
        if field == 2 and isinstance(part, int):
            step = part
        for _, entry in _fields(part) if field == 5 else ():
            own = dict(_fields(entry))
            if own.keys() >= {1, 2}:
                (values[own[1].decode(errors="replace")],) = struct.unpack("<f", own[2])
    return step, values


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message of protocol buffers: an integer, or its bytes."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        number, place = _varint(content, place) if kind in (0, 2) else ({1: 8, 5: 4}[kind], place)
        if kind == 0:
            yield key >> 3, number
            continue
        part = content[place : place + number]
        if len(part) < number:
            raise IndexError
        place += number
        yield key >> 3, part


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Return an integer of 7 bits a byte, the low ones first, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (content[place] & 127) << shift
        place += 1
        if content[place - 1] < 128:
            return value, place
    raise IndexError
