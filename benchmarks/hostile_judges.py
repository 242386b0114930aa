"""Whether what a command accepted is right, by readers that share no code with the package's.

Only the names and types of settings are taken from the package.

A judge returns "" if the output is right, and otherwise what is wrong with it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pyarrow
from pyarrow.parquet import ParquetFile
from trl import GRPOConfig, RLOOConfig

from apportion.lab.study.design import Study
from apportion.trl.jobs.job import Job

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
PROMPTS, GOLDS = ("prompt", "question", "problem"), ("answer", "gold", "solution")


class Unreadable(ValueError):
    """The independent reader finds that the content is not valid."""


@dataclass(frozen=True)
class Accepted:
    """A case that ended with exit code 0: its command line, its working directory, and what it printed."""

    arguments: Sequence[str]
    folder: Path
    out: str
    err: str

    def option(self, name, default=""):
        """Return the last value of an option."""
        found = default
        for place, each in enumerate(self.arguments):
            if each == name and place + 1 < len(self.arguments):
                found = self.arguments[place + 1]
            elif each.startswith(f"{name}="):
                found = each.partition("=")[2]
        return found


def rows_of(path, columns=None):
    """Return the rows of a table, of Parquet only these ``columns`` of each. Raises Unreadable."""
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path, columns)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(str(error)) from error
    return _csv_rows(text) if path.suffix.lower() == ".csv" else [strict_json(line) for line in _lines(text)]


def strict_json(text):
    """Return the value of ``text``. Raises Unreadable for repeated names, NaN, infinity and lone surrogates."""

    def refuse(word):
        raise Unreadable(f"{word} is no JSON")

    def table(pairs):
        if len({name for name, _ in pairs}) < len(pairs):
            raise Unreadable("a name is there twice")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=table, parse_constant=refuse)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    return found


def number_of(cell):
    """Return the finite number in ``cell``. Raises Unreadable."""
    if isinstance(cell, str) and NUMBER.fullmatch(cell.strip(" \t")):
        cell = float(cell)
    try:
        if not isinstance(cell, bool) and isinstance(cell, (int, float)) and math.isfinite(cell):
            return float(cell)
    except OverflowError as error:
        raise Unreadable(str(error)) from error
    raise Unreadable(f"{str(cell)[:40]!r} is no finite number")


def judge_allocate(case):
    """Compare the counts with the table: their sum, their bounds, their number and their ids."""
    method = case.option("--method", "vip")
    if not case.out.startswith("{"):
        return "" if "rollouts" in case.out else f"no counts in {case.out[:80]!r}"
    found = strict_json(case.out)
    counts, budget = found["counts"], int(case.option("--budget"))
    low, high = int(case.option("--low", "3")), int(case.option("--high", "64"))
    table = case.option("--input")
    if table:
        rows = rows_of(case.folder / table, ["id", *_columns(method)])
        given = {name: [number_of(row.get(name)) for row in rows] for name in _columns(method)}
    else:
        named = {name: case.option(f"--{name}") for name in _columns(method)}
        given = {name: [number_of(cell) for cell in text.split(",")] for name, text in named.items()}
        rows = [{} for _ in next(iter(given.values()))]
    if len(counts) != len(rows):
        return f"{len(counts)} counts for {len(rows)} rows"
    if sum(counts) != budget:
        return f"counts sum to {sum(counts)}, the budget is {budget}"
    least = min(low, *given["trials"]) if method == "hora" else 0 if method == "uniform" else low
    if min(counts) < least or max(counts) > max(high, -(-budget // len(counts)) if method == "uniform" else 0):
        return f"counts from {min(counts)} to {max(counts)}, bounds {low} and {high}"
    if method == "hora":
        if any(s != int(s) or t != int(t) or not 0 <= s <= t for s, t in zip(*given.values(), strict=True)):
            return "successes are no integers within the trials"
    elif any(not 0 <= p <= 1 for p in given["success"]):
        return "a success probability is outside [0, 1]"
    ids = [row.get("id") for row in rows]
    named = any("id" in row for row in rows)
    if named and [_text(each) for each in found["ids"]] != [_text(each) for each in ids]:
        return "other ids than in the table"
    written = case.option("--out")
    if written:
        lines = list(csv.reader(io.StringIO((case.folder / written).read_bytes().decode("utf-8"), newline="")))
        if [line[1] for line in lines[1:]] != [str(count) for count in counts]:
            return "other counts in the file"
    return ""


def judge_vote_plan(case):
    """Compare the numbers of the estimate with the questions and with the finished ballots."""
    rows = _questions(case)
    if not case.out.startswith("{"):
        return "" if "questions" in case.out else f"no estimate in {case.out[:80]!r}"
    found, out = strict_json(case.out), case.folder / case.option("--out")
    if found["questions"] != len(rows):
        return f"{found['questions']} questions for {len(rows)} rows"
    done = ballots(out) if out.exists() and "--overwrite" not in case.arguments else {}
    if found["finished"] != sum(_text(row.get("id")) in done for row in rows):
        return f"{found['finished']} finished, {len(done)} ballots are valid"
    most = int(case.option("--max-samples", "64"))
    if found["most_samples"] != most * (len(rows) - found["finished"]):
        return f"{found['most_samples']} samples at most"
    return ""


def judge_vote(case):
    """Check that every question has one valid ballot, and that the summary counts them.

    A question without an id gets one by its prompt.
    """
    rows, done = _questions(case), ballots(case.folder / case.option("--out"))
    missing = [row for row in rows if row.get("id") not in (None, "") and _text(row["id"]) not in done]
    if missing or len(done) < len(rows):
        return f"{max(len(missing), len(rows) - len(done))} questions have no ballot"
    found = strict_json(case.out)
    return (
        "" if found["finished"] == found["questions"] == len(rows) else f"{found['finished']} of {len(rows)} finished"
    )


def ballots(path):
    """Return the ballots of a file by id; a torn last line is not one. Raises Unreadable for anything else."""
    found: dict[str, dict[str, Any]] = {}
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise Unreadable(str(error)) from error
    lines = re.split(r"\r\n|\n|\r", text)
    for number, line in enumerate(lines):
        try:
            ballot = strict_json(line)
            _check_ballot(ballot)
        except Unreadable:
            if number == len(lines) - 1:
                break  # torn, or empty
            raise
        if ballot["id"] in found:
            raise Unreadable(f"{ballot['id']!r} is there twice")
        found[ballot["id"]] = ballot
    return found


def judge_study(case):
    """Check the types and ranges of a study's settings, and that the plan shows its numbers of arms and seeds."""
    table = _settings(case)
    wrong = _wrong_types(Study, table)
    if wrong:
        return wrong
    arms, seeds = len(table["allocators"]), len(table.get("seeds", (0, 1, 2)))
    if "--allocator" in case.arguments:
        return ""
    return "" if f"{arms} allocators x {seeds} seeds" in case.out else f"the plan does not show {arms} x {seeds}"


def judge_job(case):
    """Check the types and ranges of a job's settings, TRL's included, and the number of questions in the plan."""
    table = _settings(case)
    training = table.get("training", {})
    if table.get("algorithm") not in (None, "grpo", "rloo"):
        return "an unknown algorithm"
    wrong = _wrong_types(Job, {key: value for key, value in table.items() if key != "training"})
    wrong = wrong or _wrong_types(RLOOConfig if table.get("algorithm") == "rloo" else GRPOConfig, training)
    if wrong:
        return wrong
    data = table["data"]
    rows = rows_of(case.folder / str(data["path"]))
    wanted = min(len(rows), data.get("limit", len(rows)))
    return "" if f"{wanted} rows" in case.out or f"{wanted} questions" in case.out else f"not {wanted} questions"


def judge_overrides(case):
    """Check that numbers of the allocation that verl accepted are numbers in their range."""
    for each in case.arguments:
        name, _, value = each.partition("=")
        if name.lstrip("+") in ("allocation.allocator.low", "allocation.allocator.high", "allocation.retries"):
            try:
                wrong = int(value.strip()) < 0
            except ValueError:
                wrong = value.strip() not in ("null", "")
            if wrong:
                return f"{name} = {value[:40]}"
    return ""


def judge_nothing(case):
    """Accept: the case itself has compared what it read."""
    return "" if case.out.strip().endswith("as it was") else case.out.strip()[-200:] or "nothing was compared"


def _check_ballot(ballot):
    """Raise Unreadable unless this is what a vote can have written."""
    if not isinstance(ballot, dict):
        raise Unreadable("not an object")
    counts = ("samples", "failed", "unparsed", "cancelled", "waves", "texts")
    try:
        votes = ballot["votes"]
        good = (
            all(type(ballot[name]) is int and ballot[name] >= 0 for name in counts)
            and all(type(count) is int and count > 0 for count in votes.values())
            and sum(votes.values()) == ballot["samples"] - ballot["failed"] - ballot["unparsed"]
            and (ballot["answer"] in votes if votes else ballot["answer"] is None)
            and all(isinstance(ballot[name], str) for name in ("id", "question_hash"))
            and (ballot["gold"] is None or isinstance(ballot["gold"], str))
            and (ballot["correct"] is None or isinstance(ballot["correct"], bool))
            and (ballot["gold"] is None or ballot["answer"] is None or ballot["correct"] is not None)
            and ballot["stopped"] in ("rule", "max_samples")
            and 0 <= number_of(ballot["disagreement"]) <= 1
            and number_of(ballot["seconds"]) >= 0
            and all(
                ballot[name] is None or (type(ballot[name]) is int and ballot[name] >= 0)
                for name in ("prompt_length", "prompt_tokens", "completion_tokens")
            )
            and all(isinstance(error, str) for error in ballot.get("errors", []))
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Unreadable(repr(error)) from error
    if not good:
        raise Unreadable("counts that no vote has")


def _questions(case):
    """Return the rows of questions up to the limit; each must have a prompt, and ids must differ."""
    rows = rows_of(case.folder / case.option("--questions"), ["id", *PROMPTS, *GOLDS])
    limit = case.option("--limit")
    rows = rows[: int(limit)] if limit else rows
    prompts = [next((row[name] for name in PROMPTS if row.get(name) is not None), None) for row in rows]
    if any(not isinstance(prompt, str) or not prompt.strip() for prompt in prompts):
        raise Unreadable("a prompt is missing")
    ids = [_text(row["id"]) for row in rows if row.get("id") not in (None, "")]
    if len(set(ids)) < len(ids):
        raise Unreadable("an id is there twice")
    return rows


def _columns(method):
    return ("successes", "trials") if method == "hora" else ("success",)


def _text(cell):
    return None if cell is None else str(cell)


def _lines(text):
    return [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]


def _csv_rows(text):
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True) if line]
    except csv.Error as error:
        raise Unreadable(str(error)) from error
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise Unreadable("rows differ in length")
    names = [name.strip() for name in lines[0]]
    if len(set(names)) < len(names):
        raise Unreadable("columns have one name")
    return [dict(zip(names, line, strict=True)) for line in lines[1:]]


def _parquet_rows(path, columns):
    try:
        with ParquetFile(path, page_checksum_verification=True) as file:
            kept = [name for name in file.schema_arrow.names if columns is None or name in columns]
            return file.read(columns=kept).to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise Unreadable(str(error).splitlines()[0]) from error


def _settings(case):
    """Return the settings of a case's file with those of its options ``--set``."""
    name = next((each for each in case.arguments[1:] if each.endswith(".toml")), "study.toml")
    table = _toml(case.folder / name)
    for before, override in pairwise(case.arguments):
        if before == "--set":
            _override(table, override)
    return table


def _toml(path):
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def _override(table, override):
    name, _, text = override.partition("=")
    *path, last = name.strip().split(".")
    for key in path:
        table = table.setdefault(key.strip(), {})
    try:
        table[last.strip()] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[last.strip()] = text.strip()


def _wrong_types(cls, table):
    """Return the first unknown key of ``table``, or value that is not of the type of its field of ``cls``; else ""."""
    hints, known = get_type_hints(cls), {field.name for field in fields(cls)}
    for key, value in table.items():
        if key not in known:
            return f"{key} is no setting"
        hint = hints[key]
        kinds = tuple(kind for kind in (get_args(hint) or (hint,)) if kind is not NoneType)
        if is_dataclass(kinds[0]) and isinstance(value, dict) and (inside := _wrong_types(kinds[0], value)):
            return inside
        wrong = (
            (any(kind in (int, float) for kind in kinds) and isinstance(value, str) and str not in kinds)
            or (all(kind is int for kind in kinds) and type(value) is not int)
            or (kinds == (float,) and (type(value) not in (int, float) or math.isnan(value)))
            or (kinds == (bool,) and type(value) is not bool)
            or (kinds == (str,) and not isinstance(value, str))
        )
        if wrong:
            return f"{key} = {str(value)[:40]}"
    return ""
