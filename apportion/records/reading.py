"""A rollout log, or the group counts of visits, as a ``RunRecord``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import integer_array
from apportion.records.rollout_log import read_log
from apportion.records.run_record import RunRecord
from apportion.types import Counts, Floats

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

READ = ["step", "place", "prompt_id", "prompt", "predicted", "asked", "index", "answer", "correct", "reward"]
READ += ["tokens", "score_norm", "kept", "reused_step"]
"""The columns of the log that a record is made of."""


def record_of_log(folder: Path) -> RunRecord:
    """Return the rollout log in ``folder``. Rollouts that were reused from earlier steps are left out.

    Raises RecordError as ``read_log`` does.
    """
    table = read_log(folder).select(READ)
    step, place = (_numbers(table[name]).astype(np.int64) for name in ("step", "place"))
    begins = np.r_[True, (np.diff(step) != 0) | (np.diff(place) != 0)] if len(step) else np.zeros(0, bool)
    group, starts = np.cumsum(begins) - 1, np.flatnonzero(begins)
    ids, prompt, first_rows = _codes(table["prompt_id"])
    texts = table["prompt"].take(first_rows).to_pylist()
    drawn = ~np.isnan(_numbers(table["index"])) & np.isnan(_numbers(table["reused_step"]))
    rows = table.filter(drawn)
    correct, reward = _numbers(rows["correct"].cast("int8")), _numbers(rows["reward"])
    answers, answer, _ = _codes(rows["answer"])
    return RunRecord(
        name=folder.resolve().name,
        source="rollout log",
        ids=[id or "" for id in ids],
        texts=texts,
        step=step[starts],
        prompt=prompt[starts],
        asked=_numbers(table["asked"]).astype(np.int64)[starts],
        predicted=_numbers(table["predicted"])[starts],
        written=np.full(len(starts), np.nan),
        first=np.r_[0, np.cumsum(np.bincount(group[drawn], minlength=len(starts)))],
        reward=np.where(np.isnan(correct), reward, correct),
        tokens=_numbers(rows["tokens"]),
        score_norm=_numbers(rows["score_norm"]),
        answer=np.where([text is None for text in answers], -1, np.arange(len(answers)))[answer],
        kept=_numbers(rows["kept"].cast("int8")).astype(bool),
    )


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


def _codes(column: ChunkedArray) -> tuple[list[str | None], Counts, Counts]:
    """Return the distinct texts, the code of each row, and the first row of each text."""
    import pyarrow.compute  # noqa: PLC0415 - an optional extra

    coded = pyarrow.compute.dictionary_encode(column, null_encoding="encode").combine_chunks()
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
    return coded.dictionary.to_pylist(), codes, np.unique(codes, return_index=True)[1]
