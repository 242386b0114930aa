"""Rows that hold several rollouts, unfolded to one row a rollout.

People nest rollouts in four ways: a list of verdicts with lists of answers beside it, a list of objects inside the row
of a prompt, one JSON document with such lists somewhere in it, and the logs of evaluation harnesses (inspect_ai,
lm-evaluation-harness, EvalPlus). What surrounds the innermost objects with a verdict is shared by them.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from apportion.records.importing.files import parsed
from apportion.records.importing.names import (
    COMPLETIONS,
    COUNTED,
    EVALUATION,
    KEYS,
    ROLLOUTS,
    STEP,
    USUAL,
    WORDY,
    may_be_number,
    number_in,
    verdict_names,
)
from apportion.records.importing.prime_rl import inside, is_prime_rl, placed, prime_rollouts
from apportion.records.rollout_log import RecordError
from apportion.rows import Rows, row_location
from apportion.untrusted import shown

Row = dict[str, Any]

DEEPEST = 8
"""Deepest level of nested objects that is searched for verdicts."""

INSPECT = {
    "truncated": "output/choices/stop_reason",
    "id": "id",
    "prompt": "input",
    "gold": "target",
    "tokens": "output/usage/output_tokens",
}
LIGHTEVAL = {
    "id": "doc/id __doc__/id",
    "prompt": "doc/query __doc__/query",
    "responses": "model_response/text __model_response__/text",
}
"""Paths of the values in lighteval's rows."""

PARTIAL = "P"
"""inspect_ai's score for a partially correct answer. Elsewhere the word is no verdict."""

WHOLE = ("value", "total")
EXTRACTED = re.compile(r"answer|pred|extract|parsed")
"""Keys of a verdict that are the reward, and keys that are extracted from the completion."""

SHARES = {*USUAL["share"]}
COUNTS = SHARES | {*COUNTED, *USUAL["correct"]}
"""Columns of shares, and of numbers of correct rollouts."""

VISITS = re.compile(r"correct_of_([0-9]{1,6})")
"""Names of a list of counts, one for each visit of a prompt; the number in the name is that of its rollouts."""

ABOUT = {"step", "global_step", "train_step"}, {"split", "validate", "is_validation", "is_val", "is_eval"}
"""Columns of steps and splits that are also searched in nested objects, if the row itself has none."""


def is_folded(row: Row, renamed: Mapping[str, str]) -> bool:
    """Return whether a row must be unfolded: a harness wrote it, or its verdicts are in a list or in nested objects.

    ``renamed`` has the columns that the user named. A number of correct rollouts that the user named is obeyed.
    """
    if _harness(row) is not None:
        return True
    if renamed.get("trials"):
        return False
    names = verdict_names(renamed)
    own = [_listed(row[name]) for name in names if name in row]
    return (
        bool(_counts_in(_of_visits(row)))
        or any(_is_list_of_cells(cell) or isinstance(cell, dict) for cell in own)
        or any(isinstance(cell, dict) and names & cell.keys() for cell in row.values())
        or bool(_rollouts_in(row, names))
    )


def unfolded(rows: Callable[[], Rows], renamed: Mapping[str, str], path: Path) -> Rows:
    """Yield one row a rollout, each with the number of the row that it came from. Raises RecordError."""
    names, groups = verdict_names(renamed), count(1)
    lengths: dict[str, int] = {}
    for number, row in rows():
        at = row_location(path, number)
        harness = _harness(row)
        found = harness(row, at) if harness else _leaves(row, {}, names, groups)
        yield from ((number, _with_parts(each | _lifted(each), names, lengths, at)) for each in found)


def rows_in(document: Any, renamed: Mapping[str, str], path: Path) -> Rows:
    """Yield the rows of one JSON document, numbered from 1. Raises RecordError for a document without rows."""
    rows = document
    if isinstance(document, dict) and "log_history" not in document:
        rows = _table_rows(document)
        rows = _keyed_rows(document) if rows is None else rows
        names = verdict_names(renamed)
        if rows is None and (_harness(document) or (_holds(document, names) and not names & document.keys())):
            rows = [document]
        if rows is None:
            lists = [value for value in document.values() if _is_list_of_objects(value)]
            rows = lists[0] if len(lists) == 1 else None
    if not _is_list_of_objects(rows) or not rows:
        raise RecordError(
            f"a run must be a list of objects, or hold one with verdicts, got {shown(document)} in {path}; "
            "save one object a rollout"
        )
    yield from enumerate(rows, start=1)


def _table_rows(document: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows of a table of columns, as pandas writes it by default or with "split", or as W&B writes it."""
    names, lines = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(lines, list):
        same = all(isinstance(line, list) and len(line) == len(names) for line in lines)
        return [dict(zip(map(str, names), line, strict=True)) for line in lines] if same else None
    columns = list(document.values())
    keys = [list(each) if isinstance(each, dict) else [] for each in columns]
    if len(keys) > 1 and keys[0] and all(each == keys[0] for each in keys) and all(map(str.isdecimal, keys[0])):
        columns = [list(each.values()) for each in columns]
    elif any(isinstance(cell, dict) for column in columns if isinstance(column, list) for cell in column):
        return None
    if not columns or not all(isinstance(each, list) and len(each) == len(columns[0]) for each in columns):
        return None
    return [dict(zip(document, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _keyed_rows(document: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows of several lists, each with its list's key: a prompt if rows have none, a step, split or run."""
    lists = [value for value in document.values() if value and _is_list_of_objects(value)]
    if len(lists) < max(2, len(document)):
        return None
    if not KEYS & lists[0][0].keys():
        role = "id"
    elif all(STEP.search(key) for key in document):
        role = "step"
    elif any(EVALUATION.match(key.lower()) for key in document):
        role = "split"
    elif all(rows[0].keys() == lists[0][0].keys() for rows in lists):
        role = "run"
    else:
        return None
    return [{role: key, **row} for key, rows in document.items() for row in rows]


def _harness(row: Mapping[str, Any]) -> Callable[[Row, str], Iterator[Row]] | None:
    """Return the function that reads a harness's row or document, recognised by its fields; None for others."""
    if is_prime_rl(row):
        return prime_rollouts
    sample = {"id", "epoch", "input"} <= row.keys() and isinstance(row.get("scores"), dict)
    if sample or (isinstance(row.get("samples"), list) and "eval" in row):
        return _inspect
    if {"doc_id", "resps", "filtered_resps"} <= row.keys():
        return _lm_eval
    if isinstance(inside(row, "__doc__ doc"), dict) and not {"metric", "__metric__"}.isdisjoint(row):
        return _lighteval
    tasks = row.get("eval")
    if isinstance(tasks, dict) and inside(next(iter(tasks.values()), None), "base_status base") is not None:
        return _evalplus
    return None


def _inspect(row: Row, at: str) -> Iterator[Row]:
    """Yield a rollout a sample. The first scorer's value is the reward; others have columns of their names."""
    for sample in row["samples"] if "eval" in row else [row]:
        _check_object("a sample", sample, at)
        made = {"reward": None, **placed(sample, INSPECT)}
        scores = sample.get("scores")
        for place, (name, score) in enumerate(scores.items() if isinstance(scores, dict) else ()):
            parts = score if isinstance(score, dict) else {"value": score}
            value = 0.5 if parts.get("value") == PARTIAL else parts.get("value")
            made[name if place else "reward"] = None if sample.get("error") else value
            if not place and parts.get("answer") is not None:
                made["answer"] = str(parts["answer"])
        yield made


def one_filter(rows: Callable[[], Rows], said: dict[str, None]) -> Rows:
    """Yield the rows of lm-evaluation-harness's first filter. Other filters judge the same responses again."""
    first = None
    for number, row in rows():
        own = row.get("filter") if "doc_id" in row else None
        first = own if first is None else first
        if own == first:
            yield number, row
        else:
            said[f"rows of the filter {own} are left out, because they judge the same responses as {first}"] = None


def _lm_eval(row: Row, at: str) -> Iterator[Row]:
    """Yield the rollouts of a document: all rollouts behind its metric's share, or the one that it judges."""
    named = row.get("metrics")
    names = named if isinstance(named, list) and named else LM_METRICS
    metric = next((name for name in names if type(row.get(name)) in (int, float, bool)), None)
    if metric is None:
        raise RecordError(f"a sample must have a metric, got {', '.join(map(str, row))} in {at}; name it by --reward")
    samples, answers = (cell if isinstance(cell, list) else [cell] for cell in (row["resps"], row["filtered_resps"]))
    first, kept = (cell[0] if cell and isinstance(cell[0], list) else cell for cell in (samples, answers))
    made = {"id": row["doc_id"], "prompt": _first_text(row.get("arguments")), "gold": row.get("target")}
    trials = len(first) if first is not samples else 1
    if trials < 2 or len(kept) < trials:
        texts = [each for each in (first if trials > 1 else samples) if _first_text(each) in (each, *each)]
        yield made | {"answer": str(answers[0] if answers else answers), "reward": row[metric], "responses": texts}
        return
    right = float(row[metric]) * trials
    if abs(right - round(right)) > 1e-6 * trials:
        raise RecordError(f"{metric} must be a share of {trials} samples, got {row[metric]!r} in {at}; log each sample")
    yield from (made | {"reward": float(place < round(right))} for place in range(trials))


def _lighteval(row: Row, at: str) -> Iterator[Row]:
    """Yield the one rollout of a document. The first metric is the reward; others have columns of their names."""
    metrics = inside(row, "metric __metric__")
    _check_object("a metric", metrics, at)
    yield placed(row, LIGHTEVAL) | {name if place else "reward": metrics[name] for place, name in enumerate(metrics)}


LM_METRICS = ("exact_match", "acc", "pass@1", "pass_at_1", "score")


def _evalplus(row: Row, at: str) -> Iterator[Row]:
    for task, entries in row["eval"].items():
        if isinstance(entries, dict):  # the older form: lists of [status, details]
            tests = entries.get("plus") or entries.get("base") or []
            entries = [{"base_status": each[0] if isinstance(each, list) and each else each} for each in tests]
        for entry in entries if isinstance(entries, list) else [entries]:
            _check_object("a result", entry, f"{task} of {at}")
            status = entry.get("plus_status") or entry.get("base_status")
            yield {"id": task, "correct": status == "pass", "base_status": entry.get("base_status") == "pass"}


def _check_object(what: str, value: Any, at: str) -> None:
    if not isinstance(value, dict):
        raise RecordError(f"{what} must be an object, got {shown(value)} in {at}; correct it")


def _leaves(
    value: Row, outer: Row, names: set[str], groups: Iterator[int], depth: int = 0, group: int | None = None
) -> Iterator[Row]:
    """Yield the innermost objects with a verdict, each with the fields of the objects around it.

    Lists of verdicts are spread: one row for each entry of all lists of their length; other cells are repeated.
    """
    value = _of_visits(value)
    value = {key: _listed(cell) for key, cell in value.items()} if names & value.keys() else value
    counts = _counts_in(value)
    lists = [cell for name, cell in value.items() if name in (counts or names) and _is_list_of_cells(cell)]
    parts = len(lists) > 0 and len(lists[0]) > 1 and any(_is_completion(value.get(name)) for name in COMPLETIONS)
    if counts or (lists and not parts):
        length = len(lists[0])
        spread = {key: cell for key, cell in value.items() if isinstance(cell, list) and len(cell) == length}
        rest = {key: cell for key, cell in value.items() if key not in spread and (counts or key not in names)}
        shared, number = {**outer, **rest}, next(groups)
        visit = counts and "step" not in shared and not KEYS & spread.keys()  # one prompt at several visits
        several = not counts and length > 1 and "group" not in shared  # a list of one verdict is one rollout
        for place in range(length):
            own = {"step": place, "visit": place} if visit else {"group": number} if several else {}
            yield {**shared, **{key: cell[place] for key, cell in spread.items()}, **own}
        return
    inside = _rollouts_in(value, names) if depth < DEEPEST else {}
    if not inside:
        made = {**outer, **value}
        yield made if group is None or "group" in made else made | {"group": group}
        return
    own = {**outer, **{key: cell for key, cell in value.items() if key not in inside and key not in names}}
    is_prompt = bool(KEYS & own.keys())
    for cell in inside.values():
        its_group = next(groups) if is_prompt and isinstance(cell, list) else group
        for child in cell if isinstance(cell, list) else [cell]:
            if isinstance(child, dict):
                yield from _leaves(child, own, names, groups, depth + 1, its_group)


def _lifted(row: Mapping[str, Any]) -> Row:
    """Return the step and the split in a nested object of a row, such as its attributes, if the row has none."""
    inner = [pair for cell in row.values() if isinstance(cell, dict) for pair in cell.items()]
    return {name: cell for names in ABOUT if names.isdisjoint(row) for name, cell in inner if name in names}


def _of_visits(value: Row) -> Row:
    """Return an object with a list such as correct_of_8 as counts and their trials.

    Its index becomes the id, if any.
    """
    found = next(filter(None, map(VISITS.fullmatch, value)), None)
    if found is None:
        return value
    rest = {{"index": "id"}.get(key, key): cell for key, cell in value.items() if key != found[0]}
    return {**rest, COUNTED[0]: _listed(value[found[0]]), "trials": int(found[1])}


def _counts_in(value: Mapping[str, Any]) -> list[str]:
    """Return the columns with lists of counts, or of shares, of the number of rollouts in the same row."""
    if {*USUAL["trials"]}.isdisjoint(value):
        return []
    return [
        name
        for name, cell in value.items()
        if name in COUNTS
        and _is_list_of_cells(cell)
        and (name in (*SHARES, *COUNTED[:6]) or any(number_in(each) > 1 for each in cell))
    ]


def _rollouts_in(value: Mapping[str, Any], names: set[str]) -> Row:
    """Return the cells that hold the rollouts of an object. Beside a verdict, only cells named as rollouts count."""
    inside = {key: cell for key, cell in value.items() if _holds([cell], names)}
    return {key: cell for key, cell in inside.items() if key in ROLLOUTS} if names & value.keys() else inside


def _with_parts(row: Row, names: set[str], lengths: dict[str, int], at: str) -> Row:
    """Return the row in which the parts of its reward, from an object or a list, are columns such as rewards.format.

    Raises RecordError if a list has not the length of the earlier ones in its column, which ``lengths`` remembers.
    """
    made: Row = {}
    for key, cell in row.items():
        if isinstance(cell, list) and key in names:
            if len(cell) != lengths.setdefault(key, len(cell)):
                raise RecordError(
                    f"{key} must have the same parts in every rollout, got lists of {lengths[key]} and {len(cell)} "
                    f"values in {at}, as of tokens or turns; give one number a rollout"
                )
            cell = dict(enumerate(cell))
        if isinstance(cell, dict) and key in names:
            made |= _parts(key, cell, row, names)
        elif isinstance(cell, dict) and names & cell.keys():  # further fields of the rollout
            made |= {f"{key}.{part}": value for part, value in cell.items()}
        else:
            made[key] = cell
    return made


def _parts(key: str, parts: Mapping[Any, Any], row: Row, names: set[str]) -> Row:
    """Return the columns of the parts of a reward. One that is called as a verdict, a value or a total is the whole, if
    the row has no such column. What was extracted from the completion is no part."""
    made: Row = {}
    for part, value in parts.items():
        whole = key if part in WHOLE else part
        if part in WHOLE and isinstance(value, dict):
            made |= _parts(key, value, row, names)
        elif whole in names and (whole == key or whole not in row):
            made[whole] = value
        elif EXTRACTED.search(str(part)) and part not in row:
            made[part] = None if value is None else str(value)
        else:
            made[f"{key}.{part}"] = value
    return made


def _listed(cell: Any) -> Any:
    """Return the list of plain values that a text holds, as JSON or in pandas' CSV form; any other cell unchanged."""
    if not isinstance(cell, str) or not (cell.startswith("[") and cell.endswith("]")):
        return cell
    try:
        found = parsed(cell)
    except ValueError:
        try:
            found = literal_eval(cell)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return cell
    plain = isinstance(found, list) and found and not any(isinstance(each, (list, dict)) for each in found)
    return found if plain else cell


def _is_completion(cell: Any) -> bool:
    """Return whether a cell is the text of one rollout, or its messages."""
    messages = isinstance(cell, list) and bool(cell) and all(isinstance(each, dict) and "role" in each for each in cell)
    return isinstance(cell, str) or (messages and cell[-1]["role"] not in ("user", "system"))


def _holds(value: Any, names: set[str], depth: int = 0) -> bool:
    """Return whether an object with a verdict lies inside ``value``, in lists or objects of objects."""
    cells = list(value.values()) if isinstance(value, dict) else value[:4] if isinstance(value, list) else []
    return depth <= DEEPEST and any(_has_verdict(cell, names) or _holds(cell, names, depth + 1) for cell in cells)


def _has_verdict(value: Any, names: set[str]) -> bool:
    """Return whether a value is an object with a verdict.

    Under an ambiguous name the value itself must be a verdict.
    """
    if not isinstance(value, dict):
        return False
    own = {name: value[name] for name in names if name in value and not isinstance(value[name], dict)}
    return any(name not in WORDY or number_in(cell) in (0.0, 1.0) for name, cell in own.items())


def _is_list_of_cells(value: Any) -> bool:
    return isinstance(value, list) and all(map(may_be_number, value))


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _first_text(value: Any) -> str | None:
    """Return the first text in nested lists and objects: the prompt among the arguments of a request."""
    while isinstance(value, (list, dict)) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value if isinstance(value, str) else None
