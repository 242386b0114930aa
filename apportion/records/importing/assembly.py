"""Blocks of rows, from any files in any order, as a ``RunRecord``.

Rows of one prompt at one step are one group, in the order in which they were read, if no column names the groups. Which
prompt a row is of is decided in ``keys.py``, when all rows are there.
Ten million rows take about a hundred bytes each while they are read. Answers are held as hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.records.importing.blocks import Block
from apportion.records.keys import Codes, keys_of
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import RunRecord
from apportion.rows import MOST_ROWS
from apportion.types import Counts, Floats

SHARE_ERROR = 1e-3
"""By which a share of correct rollouts may be rounded, times the rollouts."""

_COLUMNS = (
    "step",
    "prompt",
    "id",
    "gold",
    "group",
    "answer",
    "reward",
    "trials",
    "tokens",
    "score_norm",
    "predicted",
    "advantage",
)
_PER_GROUP = ("asked", "time")


@dataclass(frozen=True)
class Assembled:
    """A run, the other columns that may be its reward [R], its advantages [R], and what may be otherwise."""

    record: RunRecord
    others: Mapping[str, Floats]
    advantage: Floats
    doubts: list[str]


class RunAssembly:
    """Collects blocks. ``mark`` and ``forget`` remove the blocks of a file that must be read again."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._columns: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, *_PER_GROUP)}
        self._others: dict[str, list[Any]] = {}
        self._known: dict[str, dict[str, int]] = {name: {} for name in ("id", "prompt", "gold", "group")}
        self._roles: set[str] | None = None
        self.rows = 0

    def mark(self) -> tuple[int, int]:
        """Return the state that ``forget`` goes back to."""
        return len(self._columns["step"]), self.rows

    def forget(self, mark: tuple[int, int]) -> None:
        """Remove all blocks that were added since ``mark``."""
        for values in (*self._columns.values(), *self._others.values()):
            del values[mark[0] :]
        self.rows = mark[1]

    def add(self, block: Block) -> None:
        """Add rows. Raise RecordError if there are too many."""
        blocks = len(self._columns["step"])
        self.rows += block.rows
        if self.rows > MOST_ROWS:
            raise RecordError(f"a run must have at most {MOST_ROWS:,} rows, got more; import a part of it")
        numbers, texts = block.numbers, block.texts
        roles = {"id" if "id" in texts else "prompt"}
        if self._roles not in (None, roles):
            raise RecordError("all files of a run must have a column id, or none, got both; import them apart")
        self._roles = roles
        unknown = np.full(block.rows, np.nan, np.float32)
        made: dict[str, Any] = {
            name: numbers.get(name, unknown)
            for name in ("tokens", "score_norm", "predicted", "asked", "time", "trials", "advantage")
        }
        made["step"] = numbers.get("step", np.zeros(block.rows)).astype(np.int64)
        made["reward"] = self._reward(numbers, unknown)
        for name, known in self._known.items():
            none = np.zeros(block.rows, np.int8) if name == "group" else np.full(block.rows, -1, np.int8)
            made[name] = _coded(texts[name], known).astype(np.int32) if name in texts else none
        made["answer"] = np.zeros(block.rows, np.int8)
        if "answer" in texts:
            found, codes = texts["answer"]
            made["answer"] = np.asarray([*map(_hash, found), 0], np.int64)[codes]
        for name, values in made.items():
            self._columns[name].append(values)
        for role in dict.fromkeys([*numbers, *(f"other {name}" for name in self._others)]):
            if role.startswith("other "):
                kept = self._others.setdefault(role.removeprefix("other "), [])
                kept += [np.full(len(each), np.nan, np.float32) for each in self._columns["step"][len(kept) : blocks]]
                kept.append(numbers.get(role, unknown).astype(np.float32))

    def record(self, name: str, source: str) -> Assembled:
        """Return the run of all rows. The assembly is empty afterwards."""
        step, group = self._taken("step"), self._taken("group")
        codes = [self._taken(each) for each in ("id", "prompt", "gold")]
        names = [list(self._known[each]) for each in ("id", "prompt", "gold")]
        given = [each if each.max(initial=-1) >= 0 else None for each in codes]
        keys = keys_of(Codes(step, group, given[0], given[1], given[2], names[0], names[1], names[2]))
        order, starts = grouped(step, keys.prompt, keys.group)
        step, prompt = step[order][starts], keys.prompt[order][starts]
        sizes = np.diff(np.r_[starts, len(order)])
        trials = self._taken("trials")[order]
        columns = {name: self._taken(name)[order] for name in ("reward", "tokens", "score_norm", "answer")}
        per_group = {name: self._taken(name)[order] for name in ("predicted", "asked", "time")}
        others = {each: np.concatenate(parts)[order].astype(np.float64) for each, parts in self._others.items()}
        asked = np.fmax.reduceat(per_group["asked"], starts)
        written = np.fmax.reduceat(per_group["time"], starts)
        if counted := not np.isnan(trials).any():
            columns, sizes = _expanded(columns, trials.astype(np.int64), starts)
        used, prompt = np.unique(prompt, return_inverse=True)
        record = RunRecord(
            name=name,
            source=source,
            ids=[keys.ids[code] for code in used],
            texts=[keys.prompts[code] for code in used],
            step=step,
            prompt=prompt,
            asked=np.fmax(np.nan_to_num(asked), sizes).astype(np.int64),
            predicted=per_group["predicted"][starts].astype(np.float64),
            written=written.astype(np.float64),
            first=np.r_[0, np.cumsum(sizes)],
            reward=columns["reward"],
            tokens=columns["tokens"].astype(np.float64),
            score_norm=columns["score_norm"].astype(np.float64),
            answer=_by_appearance(columns["answer"]),
            kept=np.ones(len(columns["reward"]), bool),
            ordered=not counted,
        )
        return Assembled(record, others, self._taken("advantage")[order].astype(np.float64), keys.doubts)

    def _reward(self, numbers: Mapping[str, Floats], unknown: Any) -> Floats:
        if self._weights:
            parts = np.stack([weight * numbers[f"reward {name}"] for name, weight in self._weights.items()])
            return np.where(np.isnan(parts).all(0), np.nan, np.nansum(parts, 0))
        if "share" in numbers:
            right = numbers["share"] * numbers["trials"]
            wrong = np.abs(right - np.rint(right)) > SHARE_ERROR * numbers["trials"]
            if wrong.any():
                share, trials = (float(numbers[name][wrong.argmax()]) for name in ("share", "trials"))
                raise RecordError(f"a share must be of whole rollouts, got {share:g} of {trials:g}; give their number")
            return np.rint(right)
        correct, reward = numbers.get("correct", unknown), numbers.get("reward", unknown)
        return np.where(np.isnan(reward), correct, reward).astype(np.float64)

    def _taken(self, name: str) -> Any:
        """Return a column of all rows, which is then forgotten."""
        found = np.concatenate(self._columns[name])
        self._columns[name] = []
        return found


def grouped(step: Counts, prompt: Counts, group: Counts) -> tuple[Counts, Counts]:
    """Return the order of rows [R] in which groups follow each other, by step, and where each group begins in it.

    Groups of a step are in the order of their first rows, and rows of a group in their own order.
    """
    changes = (np.diff(step) != 0) | (np.diff(prompt) != 0) | (np.diff(group) != 0)
    runs = np.flatnonzero(np.r_[True, changes])
    keys = step[runs], prompt[runs], group[runs]
    by_key = np.lexsort(keys[::-1])
    news = np.r_[True, np.any([np.diff(key[by_key]) != 0 for key in keys], axis=0)]
    label = np.cumsum(news) - 1
    heads = by_key[news]
    place = np.empty(len(heads), np.int64)
    place[np.lexsort((heads, keys[0][heads]))] = np.arange(len(heads))
    of_run = np.empty(len(runs), np.int64)
    of_run[by_key] = place[label]
    order = np.argsort(of_run, kind="stable")
    lengths = np.diff(np.r_[runs, len(step)])[order]
    begins = np.r_[0, np.cumsum(lengths)[:-1]]
    firsts = np.r_[True, np.diff(of_run[order]) != 0]
    rows = np.repeat(runs[order] - begins, lengths) + np.arange(len(step))
    return rows, begins[firsts]


def _expanded(columns: Mapping[str, Any], trials: Counts, starts: Counts) -> tuple[dict[str, Any], Counts]:
    """Return the rollouts of groups that are given as counts, and the sizes of the groups."""
    total = int(trials.sum())
    if total > MOST_ROWS:
        raise RecordError(f"a run must have at most {MOST_ROWS:,} rollouts, got {total:,} trials; correct the counts")
    within = np.arange(total) - np.repeat(np.cumsum(trials) - trials, trials)
    made = {name: np.repeat(values, trials) for name, values in columns.items()}
    made["reward"] = (within < made["reward"]).astype(np.float64)
    made["tokens"] = np.full(total, np.nan)
    made["score_norm"] = np.full(total, np.nan)
    return made, np.add.reduceat(trials, starts)


def _coded(texts: tuple[Sequence[str], Counts], known: dict[str, int]) -> Counts:
    """Return the codes of texts among all that are ``known``, which get the new ones. -1 stays."""
    found, codes = texts
    places = np.asarray([known.setdefault(text, len(known)) for text in found] + [-1])
    return np.asarray(places[codes])


def _hash(text: str) -> int:
    """Return a hash of 64 bits that is not 0, which stands for no answer."""
    return hash(text) or 1


def _by_appearance(hashes: Counts) -> Counts:
    """Return a number for each hash, in the order of their first rows, and -1 for 0."""
    if not hashes.any():
        return np.full(len(hashes), -1)
    found, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(np.where(found == 0, -1, first))
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found)) - bool((found == 0).any())
    return rank[codes]
