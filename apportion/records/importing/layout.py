"""Which columns of a table of rollouts say what, in the formats that are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from apportion.records.rollout_log import RecordError
from apportion.untrusted import parse_number, shown

NUMBERS = {
    "step": (0, 2**52, True),
    "reward": (-1e12, 1e12, False),
    "correct": (0, 1, True),
    "trials": (0, 1e9, True),
    "tokens": (0, 1e12, True),
    "score_norm": (0, 1e100, False),
    "predicted": (-1e12, 1e12, False),
    "asked": (0, 1e9, True),
    "time": (0, 1e12, False),
}
"""Columns of numbers: the least and the greatest value, and whether only whole numbers are right."""

TEXTS = ("prompt", "id", "answer", "group")
"""Columns of texts. ``group`` names the group of a row, if one prompt may have several groups in a step."""

RENAMED = {
    "verl": {"prompt": "input", "reward": "score", "group": "uid"},
    "trl": {},
    "plain": {},
    "counts": {},
    "prime-rl": {},
}
"""Columns that a tool calls otherwise."""

NAMES = {
    "trl": "TRL completions",
    "verl": "verl rollout dump",
    "prime-rl": "prime-rl rollouts",
    "plain": "table of rollouts",
    "counts": "group counts per step",
    "visits": "group counts per visit",
}
"""The formats that ``import_run`` reads, and what each is called in ``RunRecord.source``."""

KNOWN = {
    "trl": {"completion", "advantage"},
    "verl": {"output", "gts"},
    "prime-rl": set(),
    "plain": {"completion", "advantage"},
    "counts": set(),
}
"""Columns that are understood but not needed."""


@dataclass(frozen=True)
class Layout:
    """The columns of a table of rollouts.

    Args:
        format: a key of ``NAMES``.
        columns: the column of each number and text, by what it says. Columns that a file lacks are left out of it.
        rewards: the columns whose weighted sum is the reward, and their weights; ``reward`` itself if it is empty.
    """

    format: str
    columns: Mapping[str, str]
    rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, str]:
        """The columns of numbers, by what they say. Columns of a weighted reward have their own names."""
        own = {role: column for role, column in self.columns.items() if role in NUMBERS}
        return own | {f"reward {column}": column for column in self.rewards}

    @property
    def texts(self) -> dict[str, str]:
        """The columns of texts, by what they say."""
        return {role: column for role, column in self.columns.items() if role in TEXTS}

    def limits(self, role: str) -> tuple[float, float, bool]:
        """Return the least and the greatest value of a column of numbers, and whether it must be whole."""
        if role == "correct" and "trials" in self.columns:
            return NUMBERS["trials"]
        return NUMBERS[role.split()[0]]

    def ignored(self, found: Collection[str]) -> list[str]:
        """Return the columns of ``found`` that nothing reads."""
        read = {*self.columns.values(), *self.rewards} | KNOWN[self.format]
        return [column for column in found if column not in read]


def detect(path: str, found: Collection[str], renamed: Mapping[str, str]) -> str:
    """Return the format of a table with the columns ``found``."""
    names = set(found)
    if [name for name in found if name.startswith("correct_of_")]:
        return "visits"
    if "traces" in names or {"rewards", "task"} <= names or {"example_id", "reward"} <= names:
        return "prime-rl"
    if path.endswith(".parquet") and {"step", "prompt", "completion", "advantage"} <= names:
        return "trl"
    if {"input", "output", "score"} <= names:
        return "verl"
    if {"trials", "correct"} <= names | set(renamed):
        return "counts"
    return "plain"


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

    ``renamed`` gives columns of another name, by what they say. Raises RecordError if a column is missing, and if
    several may be the reward.
    """
    listed = ", ".join(map(str, found[:20])) + (", ..." if len(found) > 20 else "")
    for role in renamed:
        if role not in NUMBERS and role not in TEXTS:
            raise RecordError(f"column must be one of {', '.join([*NUMBERS, *TEXTS])}, got {shown(role)}; correct it")
    names = {role: role for role in (*NUMBERS, *TEXTS)} | RENAMED[format] | dict(renamed)
    if format not in ("plain", "counts"):
        names = {role: column for role, column in names.items() if role != "correct" or "correct" in renamed}
    columns = {role: column for role, column in names.items() if column in found}
    for role, column in renamed.items():
        if column not in found:
            raise RecordError(f"{source} must have the column {column} for {role}, got {listed}; correct --column")
    for column in rewards:
        if column not in found:
            raise RecordError(f"{source} must have the reward column {column}, got {listed}; correct --reward")
    if rewards:
        columns = {role: column for role, column in columns.items() if role not in ("reward", "correct")}
    elif format == "trl" and "reward" not in columns:
        named = {*columns.values(), "completion", "advantage"}
        places = [column for column in found if column in numeric and column not in named]
        if len(places) > 1:
            raise RecordError(
                f"{source} has several columns that may be the reward, got {', '.join(places)}; name one by --reward "
                "NAME, or give a weight to each by --reward NAME=WEIGHT, as TRL's reward_weights"
            )
        columns |= {"reward": places[0]} if places else {}
    if format != "counts":
        columns.pop("trials", None)
    wanted = {"step": {"step"}, "prompt or id": {"prompt", "id"}}
    wanted |= {"correct": {"correct"}, "trials": {"trials"}} if format == "counts" else {}
    wanted |= {} if rewards or format == "counts" else {"reward or correct": {"reward", "correct"}}
    for name, roles in wanted.items():
        if not roles & columns.keys():
            if len(found) == 1 and (";" in listed or "\t" in listed):
                raise RecordError(f"{source} must have commas between its cells, got {listed}; save it with commas")
            raise RecordError(
                f"{source} must have a column {name}, got {listed}; name it by --column, as in reward=score"
            )
    return Layout(format, columns, dict(rewards))
