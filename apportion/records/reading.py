"""A rollout log, or the group counts of visits, as a ``RunRecord``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.checks import integer_array
from apportion.records.log_reading import read_steps
from apportion.records.record_writing import About
from apportion.records.rollout_log import RecordError, schema
from apportion.records.run_record import RunRecord
from apportion.types import Counts, Floats

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

READ = (
    *("step", "place", "prompt_id", "prompt", "predicted", "asked", "index", "answer"),
    *("correct", "reward", "tokens", "score_norm", "kept", "reused_step", "written"),
)
"""The columns of the log that a record is made of."""


def record_of_log(folder: Path) -> RunRecord:
    """Return the rollout log in ``folder``. Rollouts that were reused from earlier steps are left out.

    Raises RecordError as ``read_log`` does, and if steps of an imported run are missing.
    """
    schema()
    about, parts = About.read(folder), _Parts()
    for table in read_steps(folder, READ):
        parts.add(table)
    return parts.record(folder, about)


class _Parts:
    """The columns of the steps read so far, and the numbers that prompts and answers got."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.texts: list[str | None] = []
        self.answers: dict[str, int] = {}
        self.columns: dict[str, list[NDArray[Any]]] = {}

    def add(self, table: Table) -> None:
        """Add the rows of a step."""
        place, asked = _numbers(table["place"]), _numbers(table["asked"])
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        drawn = ~np.isnan(_numbers(table["index"])) & np.isnan(_numbers(table["reused_step"]))
        sizes = np.add.reduceat(drawn, starts, dtype=np.int64)
        rows = table.filter(drawn)
        correct, reward = _numbers(rows["correct"].cast("int8")), _numbers(rows["reward"])
        groups = table.take(starts)
        answers, codes = _codes(rows["answer"])
        numbers = [-1 if text is None else self.answers.setdefault(text, len(self.answers)) for text in answers]
        for name, values in {
            "step": _numbers(groups["step"]).astype(np.int64),
            "prompt": self._prompts(groups),
            "asked": asked[starts].astype(np.int64),
            "predicted": _numbers(groups["predicted"]),
            "written": _numbers(groups["written"]),
            "sizes": sizes,
            "reward": np.where(np.isnan(correct), reward, correct),
            "tokens": _numbers(rows["tokens"]),
            "score_norm": _numbers(rows["score_norm"]),
            "answer": np.array(numbers, np.int64)[codes],
            "kept": _numbers(rows["kept"].cast("int8")).astype(bool),
        }.items():
            self.columns.setdefault(name, []).append(values)

    def record(self, folder: Path, about: About | None) -> RunRecord:
        """Return the run of all steps."""
        columns: dict[str, Any] = {name: np.concatenate(values) for name, values in self.columns.items()}
        first = np.r_[0, np.cumsum(columns.pop("sizes"))]
        if about is None:
            about = About(folder.resolve().name, "rollout log", steps=len(self.columns["step"]), rollouts=first[-1])
        if (about.steps, about.rollouts) != (len(self.columns["step"]), first[-1]):
            raise RecordError(
                f"{folder} must have {about.steps} steps with {about.rollouts} rollouts, got "
                f"{len(self.columns['step'])} with {first[-1]}; import the run again"
            )
        return RunRecord(
            name=about.name,
            source=about.source,
            ids=list(self.ids),
            texts=self.texts,
            first=first,
            ordered=about.ordered,
            visits=about.visits,
            **columns,
        )

    def _prompts(self, groups: Table) -> Counts:
        """Return the numbers of the prompts of ``groups``."""
        found, texts = groups["prompt_id"].to_pylist(), groups["prompt"].to_pylist()
        for id, text in zip(found, texts, strict=True):
            if self.ids.setdefault(id, len(self.ids)) == len(self.texts):
                self.texts.append(text)
        return np.array([self.ids[id] for id in found], np.int64)


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


def _codes(column: ChunkedArray) -> tuple[list[str | None], Counts]:
    """Return the distinct texts, and the code of each row."""
    import pyarrow.compute  # noqa: PLC0415 - an optional extra

    coded = pyarrow.compute.dictionary_encode(column, null_encoding="encode").combine_chunks()
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
    return coded.dictionary.to_pylist(), codes
