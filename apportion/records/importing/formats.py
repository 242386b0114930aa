"""Which format a table has, by the content of its first rows: a name alone is no format."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from itertools import pairwise

from apportion.records.importing.names import (
    COUNTED,
    ENDED,
    SPLIT,
    STEPS,
    TOTALS,
    USUAL,
    is_evaluation,
    named_in,
    number_in,
    resolved,
    truncation_in,
)
from apportion.records.importing.source import Head, Source
from apportion.rows import kind_of

VERDICT = re.compile("pass|correct|scor|acc|rew|success|result|valid$|ok")
"""Names of flags that hold a verdict, among flags that mention a test or an evaluation."""

MOST_SPLITS = 8
"""Most splits of the data that the cells of a column may name."""
LONGEST = 60
"""Longest reason for the end of a completion, in characters."""
LONG = 1.5
"""Least mean number of turns per rollout, among the first rollouts, for rows to count as turns."""


def detect(source: Source, renamed: Mapping[str, str]) -> str:
    """Return the format of a table."""
    names = set(source.columns)
    if kind_of(source.path) == ".parquet" and {"step", "prompt", "completion", "advantage"} <= names:
        return "trl"
    if {"input", "output", "score"} <= names:
        return "verl"
    return "counts" if _counts(source.head, source.columns, renamed) else "plain"


def counted_in(found: Collection[str], renamed: Mapping[str, str]) -> str | None:
    """Return the column with the number of correct rollouts, if a column has the number of rollouts."""
    return resolved("correct", found, renamed, ("correct", *COUNTED, *USUAL["correct"]))


def _counts(head: Head, found: Collection[str], renamed: Mapping[str, str]) -> bool:
    """Return whether a row is a group: how many of how many rollouts were correct.

    A verdict beside a column such as ``n`` is one rollout, unless some values of it are above 1. So is what has a
    reward of its own, or a share of 0 or 1, if a prompt comes several times at a step.
    """
    trials, counted = resolved("trials", found, renamed), counted_in(found, renamed)
    if trials is None or trials == counted:
        return False
    once = comes_once(head, found, renamed)
    explicit, reward = trials == "trials" or "trials" in renamed, resolved("reward", found, renamed)
    if counted is None:
        share = resolved("share", found, renamed)
        whole = share is not None and {number_in(row.get(share)) for row in head} <= {0.0, 1.0}
        return reward is None and share is not None and (once or explicit or not whole)
    pairs = [(number_in(row.get(counted)), number_in(row.get(trials))) for row in head]
    if explicit or (counted in COUNTED and (once or reward is None)):
        return True
    all_counted = trials.lower() in TOTALS and all(number > 1 for _, number in pairs)
    return once and (all_counted or any(right > 1 for right, _ in pairs))


def comes_once(head: Head, found: Collection[str], renamed: Mapping[str, str]) -> bool:
    """Return whether each prompt has one row per step."""
    keys = [resolved(role, found, renamed) for role in ("step", "id", "prompt")]
    return len({str([row.get(key or "") for key in keys]) for row in head}) == len(head)


def split_in(head: Head, found: Collection[str]) -> str:
    """Return the column that tells rows of an evaluation from others: one of a usual name whose cells say it, or one
    whose texts all name a split of the data; else one of a usual name; "" without one."""
    usual = named_in(USUAL["split"], found)
    for name in (*usual, *found):
        cells = {row.get(name) for row in head if isinstance(row.get(name), (str, bool, int, float))}
        flag = SPLIT.search(name.lower()) and not VERDICT.search(name.lower())
        kinds = (str, bool) if flag else (str,)
        may_be = name in usual or all(isinstance(cell, kinds) for cell in cells)
        if may_be and 0 < len(cells) <= MOST_SPLITS and all(is_evaluation(name, cell) is not None for cell in cells):
            return name
    late = [name for name in usual if all(row.get(name) is None for row in head)]
    return next(iter(late + usual), "")


def truncated_in(head: Head, found: Collection[str]) -> str:
    """Return the column of flags or reasons that says whether a completion was cut; "" without one."""
    for name in found:
        cells = [row.get(name) for row in head] if ENDED.search(name.lower()) else []
        said = {truncation_in(cell) for cell in cells}
        flags = all(cell in (0, 1) if isinstance(cell, (int, float)) else len(str(cell)) <= LONGEST for cell in cells)
        if flags and (1.0 in said or (0.0 in said and not name.lower().endswith("status"))):
            return name
    return ""


def turn_in(head: Head, columns: Mapping[str, str], found: Collection[str]) -> tuple[str, str] | None:
    """Return the columns of the turn and of the step, "" for none, if a rollout has a row for each of its turns.

    ``columns`` has the columns by what they say. A step that begins again with each rollout of a prompt is a turn.
    """
    turn, step = columns.get("turn", ""), columns.get("step", "")
    if turn not in ("", step) and _begins_again(head, turn, columns, step, turn.lower() not in USUAL["step"]):
        return turn, step
    steps = [name for name in found if name != step and name.lower() in STEPS]
    other = steps[0] if steps else ""
    return (step, other) if step and _begins_again(head, step, columns, other, False) else None


def _begins_again(head: Head, turn: str, columns: Mapping[str, str], step: str, named: bool) -> bool:
    """Return whether the column ``turn`` counts up by 1 within a rollout and restarts with the next.

    Unless it is ``named`` as turns, some prompt must have several rollouts, one after the other or with ids.
    """
    rollout = columns.get("rollout")
    prompt = columns.get("id") or (None if rollout else columns.get("prompt"))
    counts, prompts = [number_in(row.get(turn)) for row in head], set()
    last: dict[tuple[str, str], float] = {}
    begun = 0
    for row, count in zip(head, counts, strict=True):
        own = str([row.get(name or "") for name in (prompt, step)])
        key = own, str(row.get(rollout or ""))
        if count != last.get(key, math.inf) + 1:
            if count != min(counts):
                return False
            begun += 1
        last[key] = count
        prompts.add(own)
    falls = sum(one > other for one, other in pairwise(counts))
    apart = rollout is not None and len({key[1] for key in last}) == len(last)
    several = begun > len(prompts) and (apart or falls >= (begun - 1) / 2)
    return len(head) >= LONG * begun and (named or several)
