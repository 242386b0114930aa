"""Which columns of a table of rollouts say what: by their usual names, by the format, or as the user says."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from apportion.records.rollout_log import RecordError
from apportion.types import Floats, Mask
from apportion.untrusted import parse_number, shown

STEP = re.compile(r"(?:step|iter|iteration)[_-]?([0-9]{1,15})(?![0-9])|^([0-9]{1,15})$")
"""How names of files and folders, and cells, give a step."""

EVALUATION = re.compile(r"(?:eval\w*|val(?:id\w*|set)?|test(?:set|ing)?|dev(?:set)?|true)(?![a-z])")
"""How cells of a column of splits, and names of files and folders, begin in an evaluation, in small letters."""

NUMBERS = {
    "step": (0, 2**52, True),
    "reward": (-1e12, 1e12, False),
    "correct": (0, 1, True),
    "trials": (0, 1e9, True),
    "share": (0, 1, False),
    "tokens": (0, 1e12, True),
    "score_norm": (0, 1e100, False),
    "predicted": (-1e12, 1e12, False),
    "asked": (0, 1e9, True),
    "time": (0, 1e12, False),
    "advantage": (-1e12, 1e12, False),
}
"""Columns of numbers: the least and the greatest value, and whether only whole numbers are right."""

OPTIONAL = ("tokens", "score_norm", "predicted", "asked", "time", "advantage")
"""Columns of numbers without which a run can be read."""

TEXTS = ("prompt", "id", "answer", "group", "gold", "split", "run")
"""Columns of texts. ``group`` names the group of a row, if one prompt may have several groups in a step. ``gold`` is
the known answer of a problem, or its image: it tells apart problems that have the same text. ``split`` tells rows of
an evaluation from those of training, and ``run`` those of several runs or models from each other."""

USUAL = {
    "step": ("global_step", "train_step", "training_step", "training_iteration", "iteration", "iter", "_step"),
    "reward": ("score", "rewards", "scores", "scalar_reward", "total_reward", "final_reward"),
    "correct": (
        "is_correct",
        "acc",
        "success",
        "passed",
        "pass",
        "solved",
        "exact_match",
        "task_correct",
        "correctness",
        "resolved",
    ),
    "trials": (
        "n",
        "num_samples",
        "n_samples",
        "num_trials",
        "n_trials",
        "num_rollouts",
        "n_rollouts",
        "attempts",
        "k",
    ),
    "share": ("pass_rate", "solve_rate", "success_rate", "accuracy"),
    "tokens": (
        *("completion_tokens", "generated_tokens", "output_tokens", "response_tokens", "num_tokens"),
        *("completion_length", "response_length"),
    ),
    "prompt": ("question", "problem", "input", "query", "instruction", "prompts"),
    "id": (
        *("prompt_id", "question_id", "problem_id", "task_id", "example_id", "doc_id", "qid", "idx", "instance_id"),
        *("prompt_index", "problem_index", "question_index"),
    ),
    "answer": ("pred", "prediction", "extracted_answer", "predicted_answer", "model_answer", "pred_answer"),
    "group": ("group_id", "group_idx", "group_index"),
    "split": ("phase", "mode", "stage", "data_split", "dataset_split", "is_eval", "is_val", "is_validation", "is_test"),
    "run": ("run_id", "run_name", "experiment", "model", "model_name"),
    "gold": (
        *("gts", "ground_truth", "gold", "gold_answer", "expected_answer", "target", "reference_answer", "solution"),
        *("image", "images"),
    ),
}
"""Other names under which people keep a column, the likeliest first."""

COUNTED = ("num_correct", "n_correct", "correct_count", "c", "k")
"""Names of a number of correct rollouts, beside a number of rollouts."""

RENAMED = {"verl": {"prompt": "input", "reward": "score", "group": "uid", "gold": "gts"}}
"""Columns that a tool calls otherwise."""

PRIME_RL = ("step", "id", "prompt", "group", "reward", "tokens", "answer")
"""Columns that are made of prime-rl's rollouts."""

NAMES = {
    "trl": "TRL completions",
    "verl": "verl rollout dump",
    "prime-rl": "prime-rl rollouts",
    "plain": "table of rollouts",
    "counts": "group counts per step",
    "visits": "group counts per visit",
}
"""The formats that ``import_run`` reads, and what each is called in ``RunRecord.source``."""

UNDERSTOOD = {"completion", "completions", "advantage", "output", "response", "responses", "generation", *USUAL["gold"]}
"""Columns that are understood but not needed."""

MOST_OTHERS = 4
"""Other columns that may be the reward whose figures are shown."""


@dataclass(frozen=True)
class Layout:
    """The columns of a table of rollouts.

    Args:
        format: a key of ``NAMES``.
        columns: the column of each number and text, by what it says. Columns that a file lacks are left out of it.
        rewards: the columns whose weighted sum is the reward, and their weights; ``reward`` itself if it is empty.
        others: further columns that may be the reward, which are read for comparison. Cells that are no numbers count
            as missing there. If nothing else is the reward, it is made of them.
        given: what the user named: a role of ``columns``, or ``reward``.
    """

    format: str
    columns: Mapping[str, str]
    rewards: Mapping[str, float] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    @property
    def numbers(self) -> dict[str, str]:
        """The columns of numbers, by what they say. Those of a weighted reward and others have names of their own."""
        own = {role: column for role, column in self.columns.items() if role in NUMBERS}
        own |= {f"reward {column}": column for column in self.rewards}
        return own | {f"other {column}": column for column in self.others}

    @property
    def texts(self) -> dict[str, str]:
        """The columns of texts, by what they say."""
        return {role: column for role, column in self.columns.items() if role in TEXTS}

    def limits(self, role: str) -> tuple[float, float, bool]:
        """Return the least and the greatest value of a column of numbers, and whether it must be whole."""
        if role == "correct" and "trials" in self.columns:
            return NUMBERS["trials"]
        kind = role.split()[0]
        return NUMBERS["reward" if kind == "other" else kind]

    def out_of_limits(self, role: str, values: Floats) -> Mask:
        """Return which ``values`` [R] of a column of numbers, nan for none, are wrong there."""
        low, high, whole = self.limits(role)
        wrong = (values < low) | (values > high)
        return wrong | (values > np.floor(values)) if whole else wrong

    def has_nan(self, role: str) -> bool:
        """Return whether nan stands for nothing in a column of numbers, as TRL writes it."""
        return self.format == "trl" and role != "step"

    def ignored(self, found: Collection[str]) -> list[str]:
        """Return the columns of ``found`` that nothing reads, as far as the format says which it has."""
        read = {*self.columns.values(), *self.rewards, *self.others} | UNDERSTOOD
        return [column for column in found if column not in read and self.format != "prime-rl"]

    @property
    def made_of_others(self) -> bool:
        """Whether the reward is made of ``others``, so that they must hold numbers."""
        return bool(self.others) and not (self.rewards or {"reward", "correct"} & self.columns.keys())

    def may_hold_words(self, role: str) -> bool:
        """Return whether a column of numbers may hold verdicts in words, such as pass and fail."""
        return "trials" not in self.columns and role.split()[0] in ("correct", "reward", "other")

    @property
    def renamed(self) -> list[str]:
        """What was read under another name than its own, each as ROLE=COLUMN, unless the user or a tool says so."""
        usual = RENAMED.get(self.format, {})
        return [
            f"{role}={column}"
            for role, column in self.columns.items()
            if column not in (role, usual.get(role)) and role not in self.given
        ]


def verdict_names(renamed: Mapping[str, str] = {}) -> set[str]:
    """Return the columns that may say how good a rollout was."""
    usual = {"correct", "reward", *USUAL["correct"], *USUAL["reward"]}
    return usual | {renamed[role] for role in ("correct", "reward") if renamed.get(role)}


def detect(path: str, head: Sequence[Mapping[str, Any]], found: Collection[str], renamed: Mapping[str, str]) -> str:
    """Return the format of a table with the columns ``found``, whose first rows are ``head``."""
    names = set(found)
    if [name for name in found if name.startswith("correct_of_")]:
        return "visits"
    if "traces" in names or {"rewards", "task"} <= names or {"example_id", "reward"} <= names:
        return "prime-rl"
    if path.endswith(".parquet") and {"step", "prompt", "completion", "advantage"} <= names:
        return "trl"
    if {"input", "output", "score"} <= names:
        return "verl"
    return "counts" if _counts(head, found, renamed) else "plain"


def _counts(head: Sequence[Mapping[str, Any]], found: Collection[str], renamed: Mapping[str, str]) -> bool:
    """Return whether a row is a group: how many of how many rollouts were correct.

    A verdict beside a column such as ``n`` is one rollout, unless some values of it are above 1. So is a share of 0 or
    1 if a prompt comes several times at a step.
    """
    trials, counted = _resolved("trials", found, renamed), _resolved("correct", found, renamed, COUNTED)
    if trials is None or trials == counted:
        return False
    if counted is None:
        reads = {_resolved(role, found, renamed) for role in ("reward", "correct")}
        share = _resolved("share", found, renamed)
        keys = [_resolved(role, found, renamed) for role in ("step", "id", "prompt")]
        visits = {str([row.get(key or "") for key in keys]) for row in head}
        whole = share is not None and {_value(row.get(share)) for row in head} <= {0.0, 1.0}
        once = len(visits) == len(head) or "trials" in renamed or trials == "trials"
        return reads == {None} and share is not None and (once or not whole)
    if trials == "trials" or "trials" in renamed or counted in COUNTED:
        return True
    return any(_value(row.get(counted)) > 1 for row in head)


def _value(cell: Any) -> float:
    """Return the number in a cell, nan for anything else."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _resolved(
    role: str, found: Collection[str], renamed: Mapping[str, str], usual: Sequence[str] | None = None
) -> str | None:
    """Return the column of ``found`` that says ``role``: the user's, that of its name, or one of a usual name."""
    if role in renamed:
        return renamed[role] or None
    by_name = {column.lower(): column for column in reversed(list(found))}
    names = (role, *(USUAL.get(role, ()) if usual is None else usual))
    return next((by_name[name] for name in names if name in by_name), None)


def weights_of(texts: Sequence[str]) -> dict[str, float]:
    """Return the reward columns in ``texts``, each NAME or NAME=WEIGHT. Raise RecordError for anything else.

    >>> weights_of(["accuracy", "format=0.2"])
    {'accuracy': 1.0, 'format': 0.2}
    """
    found: dict[str, float] = {}
    for text in texts:
        name, separator, weight = text.partition("=")
        try:
            found[name] = parse_number(weight) if separator else 1.0
        except ValueError:
            found[name] = float("nan")
        if not abs(found[name]) < 1e6:
            raise RecordError(f"reward must be NAME or NAME=WEIGHT, got {shown(text)}; write the weight as a number")
    return found


def layout_of(
    source: str,
    format: str,
    found: Sequence[str],
    numeric: Collection[str],
    rewards: Mapping[str, float],
    renamed: Mapping[str, str],
) -> Layout:
    """Return the layout of ``source``, which has the columns ``found``, ``numeric`` ones of them with numbers.

    ``renamed`` gives columns of another name, by what they say, and "" for one that must not be read. Raises
    RecordError if a column is missing, with everything that is missing, and for a column that was named in vain.
    """
    if format == "prime-rl":
        return Layout(format, {role: role for role in PRIME_RL})
    listed = ", ".join(map(str, found[:20])) + (", ..." if len(found) > 20 else "")
    for role, column in renamed.items():
        if role not in NUMBERS and role not in TEXTS:
            raise RecordError(f"column must be one of {', '.join([*NUMBERS, *TEXTS])}, got {shown(role)}; correct it")
        if column and column not in found:
            raise RecordError(f"{source} must have the column {column} for {role}, got {listed}; correct --column")
    for column in rewards:
        if column not in found:
            raise RecordError(f"{source} must have the reward column {column}, got {listed}; correct --reward")
    if rewards and {"reward", "correct"} & renamed.keys():
        raise RecordError("the reward must be named once, got --reward and --column; leave one out")
    own = {role: name for role, name in RENAMED.get(format, {}).items() if name in found} | dict(renamed)
    columns = {role: name for role in (*NUMBERS, *TEXTS) if (name := _resolved(role, found, own))}
    counts, named = format == "counts", {"reward", "correct"} & renamed.keys()
    if counts and "correct" not in renamed and (counted := _resolved("correct", found, {}, COUNTED)):
        columns["correct"] = counted
    sampled = _resolved("answer", [column for column in found if column != "answer"], {})
    if sampled is not None and "answer" in found and "answer" not in renamed:  # the known one beside the sampled one
        columns |= {"answer": sampled} | ({} if "gold" in columns or "gold" in renamed else {"gold": "answer"})
    unread = set() if counts else {"trials", "share"}
    if counts and "correct" in columns:
        unread.add("share")
    if format != "trl":
        unread.add("advantage")  # of TRL it tells which columns are the reward
    if "id" in columns and "gold" not in renamed:
        unread.add("gold")
    columns = {role: name for role, name in columns.items() if role not in unread}
    others: list[str] = []
    if not (rewards or counts or named):  # of TRL all further columns of numbers may be the reward
        usual, known = verdict_names(), {*columns.values(), *UNDERSTOOD}
        further = [column for column in found if column in numeric and column not in known]
        others = [column for column in further if format == "trl" or column.lower().partition(".")[0] in usual]
        if {"reward", "correct"} <= columns.keys():
            others.insert(0, columns.pop("correct"))
        if format == "trl" and "reward" not in found:  # a reward function may have any name
            others = [columns.pop(role) for role in ("reward", "correct") if role in columns] + others
        if {"reward", "correct"} & columns.keys():
            others = others[:MOST_OTHERS]
    for role, other in (("reward", "correct"), ("correct", "reward")):
        if rewards or (role in named and not counts):
            columns.pop(other, None)
    layout = Layout(
        format,
        columns,
        dict(rewards),
        tuple(dict.fromkeys(others)),
        frozenset({*renamed} | ({"reward"} if rewards else set())),
    )
    for role, column in renamed.items():
        if column and columns.get(role) != column:
            raise RecordError(f"{role} is not read from {NAMES[format]}, got --column {role}={column}; leave it out")
    _check_whole(source, layout, found, listed)
    return layout


def _check_whole(source: str, layout: Layout, found: Sequence[str], listed: str) -> None:
    """Raise RecordError if the layout lacks a column, with all that are missing and the nearest names."""
    wanted = {"prompt or id": {"prompt", "id"}}
    if layout.columns.get("group", "group") != "group":  # a group's own number stands for its prompt
        wanted = {}
    if layout.format == "counts":
        wanted |= {"correct or share": {"correct", "share"}, "trials": {"trials"}}
    elif not (layout.rewards or layout.others):
        wanted |= {"reward or correct": {"reward", "correct"}}
    missing = {name: roles for name, roles in wanted.items() if not roles & layout.columns.keys()}
    if not missing:
        return
    roles = sorted({role for each in missing.values() for role in each})
    usual = dict.fromkeys(USUAL["share"], "reward") if "reward" in roles else {}
    usual |= {name: role for role in roles for name in (role, *USUAL.get(role, ()))}
    near = next(
        (f"{usual[close[0]]}={column}" for column in found if (close := get_close_matches(column.lower(), usual, 1))),
        "reward=score" if "reward" in roles else f"{roles[0]}=COLUMN",
    )
    raise RecordError(
        f"{source} must have a column {' and a column '.join(missing)}, got {listed}; name it by --column, as in {near}"
    )
