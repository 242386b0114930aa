"""Rows that hold several rollouts, unfolded to one row a rollout.

People nest rollouts in four ways: a list of verdicts with lists of answers beside it, a list of objects inside the row
of a prompt, one JSON document with such lists somewhere in it, and the logs of evaluation harnesses (inspect_ai,
lm-evaluation-harness, EvalPlus). What surrounds the innermost objects with a verdict is shared by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from apportion.records.importing.layout import USUAL, verdict_names
from apportion.records.rollout_log import RecordError
from apportion.rows import Rows, row_location
from apportion.untrusted import shown

Row = dict[str, Any]

DEEPEST = 8
"""Levels of objects in which verdicts are looked for."""

VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Scores of inspect_ai: correct, incorrect, partially correct, no answer."""

KEYS = {role: {role, *USUAL[role]} for role in ("id", "prompt")}


def is_folded(row: Mapping[str, Any], renamed: Mapping[str, str]) -> bool:
    """Return whether a row must be unfolded: it is of a harness, or its verdicts are a list or lie inside it.

    ``renamed`` has the columns that the user named. A number of correct rollouts that the user named is obeyed.
    """
    if _harness(row) is not None:
        return True
    if renamed.get("trials") or "traces" in row or isinstance(row.get("rewards"), dict):
        return False
    names = verdict_names(renamed)
    own = [row[name] for name in names if name in row]
    return any(_is_list_of_cells(cell) for cell in own) or (not own and _holds(row, names))


def unfolded(rows: Rows, renamed: Mapping[str, str], path: Path) -> Rows:
    """Yield one row a rollout, each with the number of the row that it came from. Raises RecordError."""
    names, groups, harnesses = verdict_names(renamed), count(1), HARNESSES | {"lm-eval": _Filter().rows}
    for number, row in rows:
        at = row_location(path, number)
        harness = _harness(row)
        found = harnesses[harness](row, at) if harness else _leaves(row, {}, names, groups, at, 0)
        yield from ((number, each) for each in found)


def rows_in(document: Any, renamed: Mapping[str, str], path: Path) -> Rows:
    """Yield the rows of one JSON document, each with its place from 1. Raises RecordError for one without any."""
    if isinstance(document, dict) and "log_history" not in document:
        if (columns := _columns(document)) is not None:
            yield from enumerate(columns, start=1)
            return
        if _harness(document) or _holds(document, verdict_names(renamed)):
            yield 1, document
            return
        lists = [value for value in document.values() if _is_list_of_objects(value)]
        document = lists[0] if len(lists) == 1 else None
    if not _is_list_of_objects(document) or not document:
        raise RecordError(
            f"a run must be a list of objects, or hold one with verdicts, got {shown(document)} in {path}; "
            "save one object a rollout"
        )
    yield from enumerate(document, start=1)


def _columns(document: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows of a table that was written column by column, as lists or as pandas writes it by default."""
    cells = list(document.values())
    if not cells or not isinstance(cells[0], (list, dict)):
        return None
    if not all(isinstance(each, type(cells[0])) and len(each) == len(cells[0]) for each in cells):
        return None
    if isinstance(cells[0], list) and not any(isinstance(each, dict) for column in cells for each in column):
        return [dict(zip(document, row, strict=True)) for row in zip(*cells, strict=True)]
    keys = list(cells[0]) if isinstance(cells[0], dict) else []
    numbered = len(cells) > 1 and bool(keys) and all(str(key).isdecimal() for key in keys)
    if numbered and all(list(each) == keys for each in cells):
        return [{name: column[key] for name, column in document.items()} for key in keys]
    return None


def _harness(row: Mapping[str, Any]) -> str | None:
    if isinstance(row.get("samples"), list) and "eval" in row:
        return "inspect"
    if "epoch" in row and isinstance(row.get("scores"), dict) and "input" in row:
        return "inspect sample"
    if {"doc_id", "resps", "filtered_resps"} <= row.keys():
        return "lm-eval"
    tasks = row.get("eval")
    if isinstance(tasks, dict) and tasks and all(isinstance(each, (list, dict)) for each in tasks.values()):
        first = next(iter(tasks.values()))
        entry = first[0] if isinstance(first, list) and first else first
        if isinstance(entry, dict) and {"base_status", "base"} & entry.keys():
            return "evalplus"
    return None


def _inspect(row: Row, at: str) -> Iterator[Row]:
    for sample in row["samples"]:
        yield from _inspect_sample(sample, at)


def _inspect_sample(sample: Row, at: str) -> Iterator[Row]:
    """Yield the one rollout of a sample. The first scorer's value is the reward; others have columns of their names."""
    if not isinstance(sample, dict):
        raise RecordError(f"a sample must be an object, got {shown(sample)} in {at}; correct it")
    scores = sample.get("scores") or {}
    usage = sample.get("output", {}).get("usage") if isinstance(sample.get("output"), dict) else None
    made: Row = {
        "id": sample.get("id"),
        "prompt": sample.get("input"),
        "gold": str(sample.get("target")),
        "tokens": usage.get("output_tokens") if isinstance(usage, dict) else None,
    }
    for place, (name, score) in enumerate(scores.items() if isinstance(scores, dict) else ()):
        value = score.get("value") if isinstance(score, dict) else score
        value = VALUES.get(value, value) if isinstance(value, str) else value
        made["reward" if not place else name] = None if sample.get("error") else value
        if not place and isinstance(score, dict) and score.get("answer") is not None:
            made["answer"] = str(score["answer"])
    yield {"reward": None, **made}


class _Filter:
    """Rows of lm-evaluation-harness, which has one for each document and filter: those of the first filter."""

    def __init__(self) -> None:
        self.first: str | None = None

    def rows(self, row: Row, at: str) -> Iterator[Row]:
        own = str(row.get("filter", "none"))
        self.first = self.first or own
        if own != self.first:
            return
        named = row.get("metrics")
        names = named if isinstance(named, list) and named else [each for each in LM_METRICS if each in row]
        metric = next((name for name in names if type(row.get(name)) in (int, float, bool)), None)
        if metric is None:
            raise RecordError(
                f"a sample must have a metric, got {', '.join(map(str, row))} in {at}; name it by --reward"
            )
        samples = row["resps"][0] if isinstance(row["resps"], list) and row["resps"] else []
        trials = len(samples) if isinstance(samples, list) else 1
        answers = row["filtered_resps"]
        made = {"id": row["doc_id"], "prompt": _first_text(row.get("arguments")), "gold": str(row.get("target"))}
        if trials < 2:
            answer = answers[0] if isinstance(answers, list) and answers else answers
            yield made | {"answer": str(answer), "reward": row[metric]}
            return
        right = float(row[metric]) * trials
        if abs(right - round(right)) > 1e-6 * trials:
            raise RecordError(
                f"{metric} must be a share of {trials} samples, got {row[metric]!r} in {at}; log each sample"
            )
        yield from (made | {"reward": float(place < round(right))} for place in range(trials))


LM_METRICS = ("exact_match", "acc", "pass@1", "pass_at_1", "score")


def _evalplus(row: Row, at: str) -> Iterator[Row]:
    for task, entries in row["eval"].items():
        if isinstance(entries, dict):  # the older form: lists of [status, details]
            tests = entries.get("plus") or entries.get("base") or []
            entries = [{"base_status": each[0] if isinstance(each, list) and each else each} for each in tests]
        for entry in entries:
            if not isinstance(entry, dict):
                raise RecordError(f"a result must be an object, got {shown(entry)} for {task} in {at}; correct it")
            status = entry.get("plus_status") or entry.get("base_status")
            yield {"id": task, "correct": status == "pass", "base_status": entry.get("base_status") == "pass"}


HARNESSES = {"inspect": _inspect, "inspect sample": _inspect_sample, "evalplus": _evalplus}


def _leaves(
    value: Row, outer: Row, names: set[str], groups: Iterator[int], at: str, depth: int, group: int | None = None
) -> Iterator[Row]:
    """Yield the innermost objects with a verdict, each with what surrounds it."""
    lists = [cell for name, cell in value.items() if name in names and _is_list_of_cells(cell)]
    if lists:
        yield from _spread(value, outer, len(lists[0]), next(groups), at)
        return
    inside = {key: cell for key, cell in value.items() if depth < DEEPEST and _holds(cell, names)}
    if inside and not any(name in names for name in value):
        own = {**outer, **{key: cell for key, cell in value.items() if key not in inside}}
        is_prompt = bool(KEYS["id"] & own.keys() or KEYS["prompt"] & own.keys())
        for cell in inside.values():
            if isinstance(cell, dict):
                children, shared = [cell], group
            else:
                children, shared = cell, next(groups) if is_prompt else group
            for child in children:
                if isinstance(child, dict):
                    yield from _leaves(child, own, names, groups, at, depth + 1, shared)
        return
    made = {**outer, **value}
    yield made if group is None or "group" in made else made | {"group": group}


def _spread(row: Row, outer: Row, length: int, group: int, at: str) -> Iterator[Row]:
    """Yield one row for each entry of the lists of ``row`` that have the same length; other cells are repeated."""
    columns = {key: cell for key, cell in row.items() if isinstance(cell, list) and len(cell) == length}
    if not length:
        return
    shared = {**outer, **{key: cell for key, cell in row.items() if key not in columns}}
    own = {} if length == 1 or "group" in shared else {"group": group}  # a list of one verdict is one rollout
    for place in range(length):
        yield {**shared, **{key: cell[place] for key, cell in columns.items()}, **own}


def _holds(value: Any, names: set[str], depth: int = 0) -> bool:
    """Return whether an object with a verdict lies inside ``value``, in lists or objects of objects."""
    if depth > DEEPEST:
        return False
    if isinstance(value, dict):
        return any(
            _has_verdict(cell, names) or _holds(cell, names, depth + 1)
            for cell in value.values()
            if isinstance(cell, (dict, list))
        )
    if isinstance(value, list):
        return any(_has_verdict(each, names) or _holds(each, names, depth + 1) for each in value[:4])
    return False


def _has_verdict(value: Any, names: set[str]) -> bool:
    return isinstance(value, dict) and any(name in value and not isinstance(value[name], dict) for name in names)


def _is_list_of_cells(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, (bool, int, float)) or each is None for each in value)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _first_text(value: Any) -> str | None:
    """Return the first text in nested lists and objects: the prompt among the arguments of a request."""
    while isinstance(value, (list, dict)) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value if isinstance(value, str) else None
