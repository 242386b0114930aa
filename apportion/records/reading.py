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
from apportion.records.keys import places_of
from apportion.records.log_reading import read_file, read_whole
from apportion.records.record_writing import About
from apportion.records.rollout_log import ROLLOUTS, RecordError
from apportion.records.run_record import RunRecord
from apportion.types import Counts, Floats
from apportion.untrusted import shown

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

READ = (
    *("step", "place", "prompt_id", "prompt", "predicted", "asked", "index", "answer"),
    *("correct", "reward", "tokens", "score_norm", "truncated", "kept", "advantage", "reused_step", "written"),
)
"""The columns of the log that a record is made of."""

CODED = ("prompt_id", "prompt", "answer")


def record_of_log(folder: str | Path, reward: str = "reward") -> RunRecord:
    """Return the rollout log in ``folder``. Rollouts that were reused from earlier steps are left out.

    ``reward`` is "reward", by which the run trained, or "correct". Where both are known and differ, that is said.

    Raises RecordError as ``read_log`` does, and if steps of an imported run are missing.
    """
    if reward not in ("reward", "correct"):
        raise RecordError(
            f"the reward of a rollout log must be reward or correct, got {shown(reward)}; leave it out, or name correct"
        )
    about, whole = About.read(folder), Path(folder).resolve()
    name = whole.parent.name if whole.name == ROLLOUTS else whole.name
    record = read_whole(folder, lambda paths: record_of_files(paths, about or About(name)))
    steps = 1 + int(np.count_nonzero(np.diff(record.step)))
    if about is not None and (about.steps, about.rollouts) != (steps, len(record.reward)):
        raise RecordError(
            f"{folder} must have {about.steps} steps with {about.rollouts} rollouts, got {steps} with "
            f"{len(record.reward)}; import the run again"
        )
    verdicts = record.components.get("correct")
    if reward == "correct" and verdicts is not None:
        doubts = tuple(each for each in record.doubts if "--reward correct reads that" not in each)
        return replace(record, reward=verdicts, components={"reward": record.reward}, doubts=doubts)
    if about is not None:  # an imported run keeps its doubts
        return record
    return replace(record, doubts=(*record.doubts, *doubts_of(record, other_rewards=record.components)))


def record_of_files(paths: Iterable[Path], about: About) -> RunRecord:
    """Return the run of the files ``paths``, at least one. Raises RecordError and FileNotFoundError."""
    ids: dict[str, int] = {}
    texts: list[str | None] = []
    answers: dict[str, int] = {}
    parts = [_columns(read_file(path, READ, CODED), ids, texts, answers) for path in paths]
    columns: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    correct, reward, taught = columns.pop("correct"), columns["reward"], columns.pop("taught")
    apart = bool((correct != reward)[~np.isnan(correct)].any())
    if (columns["predicted"] == 0.5).all():  # the belief of a rule that predicts nothing
        columns["predicted"] = np.full(len(columns["predicted"]), np.nan)
    record = RunRecord(
        name=about.name,
        source=about.source,
        ids=list(ids),
        texts=texts,
        first=np.r_[0, np.cumsum(columns.pop("sizes"))],
        ordered=about.ordered,
        visits=about.visits,
        doubts=about.doubts,
        components={"correct": correct} if apart else {},
        **columns,
    )
    return replace(record, doubts=(*record.doubts, *dead_but_trained(record, taught)))


def _columns(
    table: Table, ids: dict[str, int], texts: list[str | None], answers: dict[str, int]
) -> dict[str, NDArray[Any]]:
    """Return the columns of a file's rows. New ids and answers get the next free numbers; prompts keep their texts."""
    step, place = _numbers(table["step"]), _numbers(table["place"])
    starts = np.flatnonzero((np.diff(step, prepend=-1) != 0) | (np.diff(place, prepend=-1) != 0))
    drawn = ~np.isnan(_numbers(table["index"])) & np.isnan(_numbers(table["reused_step"]))
    groups, rows = table.take(starts), table if drawn.all() else table.filter(drawn)
    correct, reward = _numbers(rows["correct"]), _numbers(rows["reward"])
    known, found = len(ids), groups["prompt_id"].cast("string").to_pylist()
    prompt = np.fromiter((ids.setdefault(id, len(ids)) for id in found), np.int64, len(found))
    numbers, first = np.unique(prompt, return_index=True)
    texts += groups["prompt"].take(first[numbers >= known]).cast("string").to_pylist()
    answer = rows["answer"].combine_chunks()
    codes = [answers.setdefault(text, len(answers)) for text in answer.dictionary.to_pylist()]
    return {
        "step": step[starts].astype(np.int64),
        "prompt": prompt,
        "asked": _numbers(groups["asked"]).astype(np.int64),
        "predicted": _numbers(groups["predicted"]),
        "written": _numbers(groups["written"]),
        "sizes": np.add.reduceat(drawn, starts, dtype=np.int64),
        "reward": reward,
        "correct": correct,
        "tokens": _numbers(rows["tokens"]),
        "score_norm": _numbers(rows["score_norm"]),
        "truncated": _numbers(rows["truncated"]),
        "answer": np.append(codes, -1).astype(np.int64)[answer.indices.fill_null(-1).to_numpy()],
        "kept": _numbers(rows["kept"]).astype(bool),
        "taught": np.logical_or.reduceat(np.nan_to_num(_numbers(table["advantage"])) != 0, starts),
    }


def record_of_visits(correct: Sequence[ArrayLike], size: int, ids: Sequence[str], name: str = "visits") -> RunRecord:
    """Return a record of group counts: ``correct[q][k]`` of ``size`` rollouts of prompt q were correct at its visit k.

    The steps are the visits, and the order of the rollouts in a group is unknown. Raises ValueError for a count above
    ``size``.
    """
    counts = [integer_array("correct", row) for row in correct]
    prompt = np.repeat(np.arange(len(counts)), [*map(len, counts)])
    visit = places_of(prompt)
    order = np.argsort(visit, kind="stable")
    right: Counts = np.concatenate(counts)[order]
    if len(right) and (right.min() < 0 or right.max() > size):
        raise ValueError(f"correct must be 0 to {size}, the rollouts of a visit, got {right.min()} to {right.max()}")
    return RunRecord(
        name=name,
        source="group counts per visit",
        ids=tuple(ids),
        texts=(None,) * len(ids),
        step=visit[order],
        prompt=prompt[order],
        first=size * np.arange(len(order) + 1),
        reward=(np.arange(size) < right[:, None]).astype(np.float64).reshape(-1),
        ordered=False,
        visits=True,
    )


def _numbers(column: ChunkedArray) -> Floats:
    """Return a column as floats, nan for null."""
    return np.asarray(column.cast("float64").fill_null(np.nan).to_numpy())
