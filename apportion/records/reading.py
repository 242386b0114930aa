"""A rollout log, or the group counts of visits, as a ``RunRecord``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.checks import integer_array
from apportion.records.doubts import dead_but_trained, doubts_of
from apportion.records.log_reading import read_file, read_whole
from apportion.records.record_writing import About
from apportion.records.rollout_log import RecordError, schema
from apportion.records.run_record import RunRecord
from apportion.types import Counts, Floats
from apportion.untrusted import shown

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

READ = (
    *("step", "place", "prompt_id", "prompt", "predicted", "asked", "index", "answer"),
    *("correct", "reward", "tokens", "score_norm", "kept", "advantage", "reused_step", "written"),
)
"""The columns of the log that a record is made of."""

CODED = ("prompt_id", "prompt", "answer")


def record_of_log(folder: Path, reward: str = "reward") -> RunRecord:
    """Return the rollout log in ``folder``. Rollouts that were reused from earlier steps are left out.

    ``reward`` is "reward", by which the run trained, or "correct". Where both are known and differ, that is said.

    Raises RecordError as ``read_log`` does, and if steps of an imported run are missing.
    """
    schema()
    if reward not in ("reward", "correct"):
        raise RecordError(
            f"the reward of a rollout log must be reward or correct, got {shown(reward)}; leave it out, or name correct"
        )
    about = About.read(folder)
    record = read_whole(folder, lambda paths: record_of_files(paths, about or About(folder.resolve().name)))
    steps = 1 + int(np.count_nonzero(np.diff(record.step)))
    if about is not None and (about.steps, about.rollouts) != (steps, len(record.reward)):
        raise RecordError(
            f"{folder} must have {about.steps} steps with {about.rollouts} rollouts, got {steps} with "
            f"{len(record.reward)}; import the run again"
        )
    verdicts = record.components.get("correct")
    if reward == "correct" and verdicts is not None:
        return replace(record, reward=verdicts, components={"reward": record.reward})
    if about is not None:  # what was imported has its doubts
        return record
    return replace(record, doubts=(*record.doubts, *doubts_of(record, other_rewards=record.components)))


def record_of_files(paths: Iterable[Path], about: About) -> RunRecord:
    """Return the run of the files ``paths``, at least one. Raises RecordError and FileNotFoundError."""
    columns = _Columns()
    for path in paths:
        columns.add(read_file(path, READ, CODED))
    return columns.record(about)


class _Columns:
    """The columns of the steps read so far, and the numbers that prompts and answers got."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.texts: list[str | None] = []
        self.answers: dict[str, int] = {}
        self.parts: dict[str, list[NDArray[Any]]] = {}

    def add(self, table: Table) -> None:
        """Add the rows of a file."""
        step, place = _numbers(table["step"]), _numbers(table["place"])
        starts = np.flatnonzero((np.diff(step, prepend=-1) != 0) | (np.diff(place, prepend=-1) != 0))
        drawn = ~np.isnan(_numbers(table["index"])) & np.isnan(_numbers(table["reused_step"]))
        groups, rows = table.take(starts), table if drawn.all() else table.filter(drawn)
        correct, reward = _numbers(rows["correct"].cast("int8")), _numbers(rows["reward"])
        for name, values in {
            "step": step[starts].astype(np.int64),
            "prompt": self._prompts(groups),
            "asked": _numbers(groups["asked"]).astype(np.int64),
            "predicted": _numbers(groups["predicted"]),
            "written": _numbers(groups["written"]),
            "sizes": np.add.reduceat(drawn, starts, dtype=np.int64),
            "reward": np.where(np.isnan(reward), correct, reward),
            "correct": correct,
            "tokens": _numbers(rows["tokens"]),
            "score_norm": _numbers(rows["score_norm"]),
            "answer": self._answers(rows["answer"]),
            "kept": _numbers(rows["kept"].cast("int8")).astype(bool),
            "taught": np.logical_or.reduceat(np.nan_to_num(_numbers(table["advantage"])) != 0, starts),
        }.items():
            self.parts.setdefault(name, []).append(values)

    def record(self, about: About) -> RunRecord:
        """Return the run of all steps."""
        columns: dict[str, Any] = {name: np.concatenate(self.parts.pop(name)) for name in list(self.parts)}
        correct, reward = columns.pop("correct"), columns["reward"]
        apart = bool((correct != reward)[~np.isnan(correct)].any())
        taught = columns.pop("taught")
        record = RunRecord(
            name=about.name,
            source=about.source,
            ids=list(self.ids),
            texts=self.texts,
            first=np.r_[0, np.cumsum(columns.pop("sizes"))],
            ordered=about.ordered,
            visits=about.visits,
            doubts=about.doubts,
            components={"correct": correct} if apart else {},
            **columns,
        )
        return replace(record, doubts=(*record.doubts, *dead_but_trained(record, taught)))

    def _prompts(self, groups: Table) -> Counts:
        """Return the numbers of the prompts of ``groups``."""
        found, known = groups["prompt_id"].cast("string").to_pylist(), len(self.ids)
        numbers = np.fromiter((self.ids.setdefault(id, len(self.ids)) for id in found), np.int64, len(found))
        new, first_rows = np.unique(numbers, return_index=True)
        self.texts += groups["prompt"].take(first_rows[new >= known]).cast("string").to_pylist()
        return numbers

    def _answers(self, column: ChunkedArray) -> Counts:
        """Return the numbers of the answers, -1 for null."""
        coded = column.combine_chunks()
        numbers = [self.answers.setdefault(text, len(self.answers)) for text in coded.dictionary.to_pylist()]
        return np.append(numbers, -1).astype(np.int64)[coded.indices.fill_null(-1).to_numpy()]


def record_of_visits(
    correct: Sequence[ArrayLike],
    size: int,
    ids: Sequence[str],
    texts: Sequence[str | None] | None = None,
    name: str = "visits",
) -> RunRecord:
    """Return a record of group counts: ``correct[q][k]`` of ``size`` rollouts of prompt q were correct at its visit k.

    The steps are the visits, and the order of the rollouts in a group is unknown. Raises ValueError for a count above
    ``size``.
    """
    counts = [integer_array("correct", row) for row in correct]
    visit = np.concatenate([np.arange(len(row)) for row in counts])
    order = np.lexsort((np.repeat(np.arange(len(counts)), [len(row) for row in counts]), visit))
    prompt = np.repeat(np.arange(len(counts)), [len(row) for row in counts])[order]
    right: Counts = np.concatenate(counts)[order]
    if len(right) and (right.min() < 0 or right.max() > size):
        raise ValueError(f"correct must be 0 to {size}, the rollouts of a visit, got {right.min()} to {right.max()}")
    reward: Floats = (np.arange(size) < right[:, None]).astype(np.float64).reshape(-1)
    unknown = np.full(len(reward), np.nan)
    return RunRecord(
        name=name,
        source="group counts per visit",
        ids=tuple(ids),
        texts=tuple(texts) if texts is not None else (None,) * len(ids),
        step=visit[order],
        prompt=prompt,
        asked=np.full(len(order), size),
        predicted=np.full(len(order), np.nan),
        written=np.full(len(order), np.nan),
        first=size * np.arange(len(order) + 1),
        reward=reward,
        tokens=unknown,
        score_norm=unknown,
        answer=np.full(len(reward), -1),
        kept=np.ones(len(reward), bool),
        ordered=False,
        visits=True,
    )


def _numbers(column: ChunkedArray) -> Floats:
    """Return a column as floats, nan for null."""
    return np.asarray(column.cast("float64").fill_null(np.nan).to_numpy())
