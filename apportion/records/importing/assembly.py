"""Rows, from any files in any order, as a ``RunRecord``.

Rows of one prompt at one step are one group, in the order in which they were read, if no column names the groups. Which
prompt a row is of is decided in ``keys.py``, when all rows are there.
Ten million rows take about a hundred bytes each while they are read. Answers are held as hashes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.cells import check_rows, numbers_of, texts_of
from apportion.records.importing.layout import Layout
from apportion.records.importing.names import OPTIONAL, is_evaluation
from apportion.records.keys import by_appearance, keys_of, numbered, places_of
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import PER_ROLLOUT, RunRecord
from apportion.rows import MOST_ROWS, Rows
from apportion.types import Counts, Floats, Mask

ROWS = 20_000
"""Number of rows that are converted into columns at a time."""

NAMING = ("id", "prompt", "gold", "run", "group", "rollout")
KEPT = {"step", "turn", "trials", *OPTIONAL}
"""Text columns that are kept as codes, and number columns that are kept as they are."""

_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
_SAMPLE = re.compile(r"(.+)_[0-9]+_[0-9]+", re.DOTALL)


@dataclass(frozen=True)
class Assembled:
    """A run with all columns that may be its reward, its advantages [R], and the doubts about it.

    ``piece`` is that of ``Keys``.
    """

    record: RunRecord
    advantage: Floats
    doubts: list[str]
    piece: int


class RunAssembly:
    """Collects rows as columns, and gives each distinct text a number."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, dict[str, Any]]] = []
        self._known: dict[str, dict[str, int]] = {name: {} for name in NAMING}
        self._whole: dict[str, Any] = {}
        self._files: list[int] = []
        self._turn = ""
        self._named_by_files = False
        self.rows = 0

    def add(self, path: Path, layout: Layout, rows: Rows, named: Mapping[str, Any]) -> None:
        """Add the ``rows`` of a file, or none of them if one is wrong. Raise RecordError for that, or for too many.

        ``named`` is what the file's name says of all rows: their step and run, if no column does, and the split.
        """
        blocks, total = [], self.rows
        given = {role: value for role, value in named.items() if role == "split" or role not in layout.columns}
        if "run" in given:
            given["run"] = self._known["run"].setdefault(given["run"], len(self._known["run"]))
            self._named_by_files = True
        while some := list(islice(rows, ROWS)):
            if (total := total + len(some)) > MOST_ROWS:
                raise RecordError(f"a run must have at most {MOST_ROWS:,} rows, got more; import a part of it")
            columns = self._columns(path, layout, some)
            columns |= {role: np.full(len(some), value) for role, value in given.items() if value is not False}
            blocks.append((len(some), columns))
        if self._blocks and blocks and ("id" in blocks[0][1]) != ("id" in self._blocks[0][1]):
            raise RecordError("all files of a run must have a column id, or none, got both; import them apart")
        self._files.append(self.rows)
        self._turn = layout.columns.get("turn", self._turn)
        self._blocks += blocks
        self.rows = total

    def _columns(self, path: Path, layout: Layout, rows: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        """Return the columns of some rows, with texts as codes. Raises RecordError, which names the row."""
        found: dict[str, Any] = {role: numbers_of(path, layout, role, rows) for role in layout.numbers}
        found |= {role: texts_of(path, layout, role, rows) for role in layout.texts}
        check_rows(path, layout, rows, found)
        columns = {role: values for role, values in found.items() if role in KEPT}
        columns["reward"] = _reward(layout, found, len(rows))
        for role, values in found.items():
            if role.startswith("other "):
                columns[role] = values.astype(np.float32)
            elif role in NAMING:
                known, texts = self._known[role], dict.fromkeys(text for text in values if text is not None)
                codes = {text: known.setdefault(_key(role, text, layout.format), len(known)) for text in texts}
                columns[role] = np.array([codes.get(text, -1) for text in values], np.int32)
            elif role == "split":
                column = layout.columns[role]
                columns[role] = np.array([text is not None and bool(is_evaluation(column, text)) for text in values])
            elif role == "answer":  # a hash of 64 bits that is not 0, which stands for no answer
                columns[role] = np.array([0 if text is None else hash(text) or 1 for text in values], np.int64)
        return columns

    def record(self, name: str, source: str, column: str | None = None) -> Assembled:
        """Return the run of all rows. The assembly is empty afterwards. ``column`` is that of ``keys_of``."""
        self._join()
        doubts = self._without_evaluations() + self._without_turns()
        begins = np.array(self._files)
        given = dict.fromkeys(self._whole)
        step, group = self._taken("step").astype(np.int64), self._taken("group")
        named = {each: (self._taken(each), list(self._known[each])) for each in NAMING[:4]}
        named = {each: own for each, own in named.items() if own[0].max(initial=-1) >= 0}
        if not {"id", "prompt"} & named.keys():
            named["group"] = group, list(self._known["group"])
        trials = self._taken("trials")
        counted = not np.isnan(trials).any()
        keys = keys_of(step, group, named, begins, column, self._named_by_files, counted)
        order, starts = grouped(step, keys.prompt, keys.group)
        heads = order[starts]
        sizes = np.diff(np.r_[starts, len(order)])
        columns = {each: self._taken(each)[order] for each in PER_ROLLOUT if each in given}
        asked, written = (np.fmax.reduceat(self._taken(each)[order], starts) for each in ("asked", "time"))
        if counted:
            columns, sizes = _expanded(columns, trials[order].astype(np.int64), starts)
        if "answer" in columns:
            columns["answer"] = by_appearance(np.r_[0, columns["answer"]])[0][1:] - 1
        used, prompt = np.unique(keys.prompt[heads], return_inverse=True)
        record = RunRecord(
            name=name,
            source=source,
            ids=[keys.ids[code] for code in used],
            texts=[keys.prompts[code] for code in used],
            step=step[heads],
            prompt=prompt,
            asked=np.fmax(np.nan_to_num(asked), sizes).astype(np.int64),
            predicted=self._taken("predicted")[heads].astype(np.float64),
            written=written.astype(np.float64),
            first=np.r_[0, np.cumsum(sizes)],
            ordered=not counted,
            components={
                each.removeprefix("other "): self._taken(each)[order].astype(np.float64)
                for each in given
                if each.startswith("other ")
            },
            **columns,
        )
        advantage = self._taken("advantage")[order].astype(np.float64)
        return Assembled(record, advantage, doubts + keys.doubts, keys.piece)

    def _join(self) -> None:
        """Join the column's blocks into one array, and drop the blocks."""
        for name in dict.fromkeys(name for _, columns in self._blocks for name in columns):
            parts = [columns.pop(name) if name in columns else _none(name, rows) for rows, columns in self._blocks]
            self._whole[name] = np.concatenate(parts)
        self._blocks = []

    def _taken(self, name: str) -> Any:
        """Return a column of all rows and drop it. A missing column is filled with the value for nothing."""
        return self._whole.pop(name) if name in self._whole else _none(name, self.rows)

    def _keep(self, kept: Mask) -> None:
        """Keep only the rows that are marked in ``kept`` [R]."""
        self._files = [int(kept[:begin].sum()) for begin in self._files]
        self._whole = {name: values[kept] for name, values in self._whole.items()}
        self.rows = int(kept.sum())

    def _without_evaluations(self) -> list[str]:
        """Remove evaluation rows, unless all rows are, and return the doubt about it."""
        rows, mark = self.rows, self._taken("split").astype(bool)
        if mark.all() or not mark.any():
            return []
        self._keep(~mark)
        return [f"{rows - self.rows:,} of {rows:,} rows are of evaluations and left out; --column split= reads them"]

    def _without_turns(self) -> list[str]:
        """Merge the turns of each rollout into one row, and return the doubt about it.

        The turns count up by 1 in the rows of a rollout, which its column names; else its rows follow each other.
        """
        if "turn" not in self._whole:
            return []
        rows, roles = self.rows, {"rollout", "id"} & self._whole.keys() or {"prompt"}
        step = np.nan_to_num(self._whole.get("step", np.zeros(rows))).astype(np.int64)
        of = numbered(step, *(self._whole[role] for role in roles))[0]
        order = np.argsort(of, kind="stable") if "rollout" in roles else np.arange(rows)
        begins = np.flatnonzero(np.r_[True, (np.diff(of[order]) != 0) | (np.diff(self._taken("turn")[order]) != 1)])
        heads, how = order[begins], "that of each turn"
        for name in [name for name in self._whole if name in ("reward", "tokens") or name.startswith("other ")]:
            values = self._whole[name][order].astype(np.float64)
            least, made = (each.reduceat(values, begins) for each in (np.fmin, np.fmax))
            if name == "tokens" or (least != made)[~np.isnan(least)].any():
                made = np.where(np.isnan(made), np.nan, np.add.reduceat(np.nan_to_num(values), begins))
                how = "the sum of those of its turns" if name == "reward" else how
            self._whole[name] = np.full(rows, np.nan)
            self._whole[name][heads] = made
        if "answer" in self._whole:
            self._whole["answer"][heads] = self._whole["answer"][order[np.r_[begins[1:], rows] - 1]]
        self._keep(np.isin(np.arange(rows), heads))
        return [
            f"{self._turn} is the turn of a rollout, because it begins again with each: {rows:,} rows are "
            f"{self.rows:,} rollouts, whose reward is {how}; --column turn= reads a rollout a row"
        ]


def _none(name: str, rows: int) -> Any:
    """Return a column filled with the value for nothing."""
    none = 0 if name in ("step", "group", "answer", "split") else -1 if name in NAMING else np.nan
    return np.full(rows, none, np.float32 if np.isnan(none) else np.int8)


def _reward(layout: Layout, found: Mapping[str, Floats], rows: int) -> Floats:
    """Return the reward of each row from its numbers ``found``; NaN if it has none."""
    if layout.rewards:
        return weighted_sum(layout.rewards, {name: found[f"reward {name}"] for name in layout.rewards})
    if "share" in found:
        return np.rint(found["share"] * found["trials"]) if "trials" in found else found["share"]
    correct, reward = (found.get(role, np.full(rows, np.nan)) for role in ("correct", "reward"))
    return np.where(np.isnan(reward), correct, reward)


def weighted_sum(weights: Mapping[str, float], columns: Mapping[str, Floats]) -> Floats:
    """Return the sum of ``weights`` times their ``columns`` [R]. Missing parts count as 0; nan if all are missing."""
    parts = np.stack([weight * columns[name] for name, weight in weights.items()])
    return np.where(np.isnan(parts).all(0), np.nan, np.nansum(parts, 0))


def _key(name: str, text: str, format: str) -> str:
    """Return the key of a name: Unicode in one form, and a whole number saved as a float as an integer.

    The key of a row of verl is that of its sample, without the numbers of the rollout and the output.
    """
    text = text if text.isascii() else unicodedata.normalize("NFC", text)
    pattern = _SAMPLE if format == "verl" and name == "group" else _WHOLE
    found = pattern.fullmatch(text) if name in ("id", "group") else None
    return found[1] if found else text


def grouped(step: Counts, prompt: Counts, group: Counts) -> tuple[Counts, Counts]:
    """Return the order of rows [R] in which groups follow each other, by step, and where each group begins in it.

    Groups of a step are in the order of their first rows, and rows of a group in their own order.
    """
    number, heads = numbered(step, prompt, group)
    place = np.empty_like(heads)
    place[np.argsort(step[heads], kind="stable")] = np.arange(len(heads))
    of_row = place[number]
    order = np.argsort(of_row, kind="stable")
    return order, np.flatnonzero(np.diff(of_row[order], prepend=-1))


def _expanded(columns: Mapping[str, Any], trials: Counts, starts: Counts) -> tuple[dict[str, Any], Counts]:
    """Return the rollouts of groups that are given as counts, and the sizes of the groups."""
    total = int(trials.sum())
    if total > MOST_ROWS:
        raise RecordError(f"a run must have at most {MOST_ROWS:,} rollouts, got {total:,} trials; correct the counts")
    within = places_of(np.repeat(np.arange(len(trials)), trials))
    made = {name: np.repeat(values, trials) for name, values in columns.items() if name in ("reward", "answer")}
    made["reward"] = (within < made["reward"]).astype(np.float64)
    return made, np.add.reduceat(trials, starts)
