"""Which column of a table holds which quantity: by usual names, by the format, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from apportion.records.importing.formats import comes_once, counted_in, split_in, truncated_in, turn_in
from apportion.records.importing.names import (
    MOST_OTHERS,
    NAMES,
    NUMBERS,
    PART,
    RENAMED,
    TEXTS,
    UNDERSTOOD,
    USUAL,
    VERDICTS,
    WORDY,
    asked_in,
    number_in,
    resolved,
    verdict_names,
)
from apportion.records.importing.source import Head, Source
from apportion.records.rollout_log import RecordError
from apportion.untrusted import parse_number, shown


@dataclass(frozen=True)
class Layout:
    """The columns of a table of rollouts.

    Args:
        format: a key of ``NAMES``.
        columns: the column of each number and text, by what it says. Columns that a file lacks are left out of it.
        rewards: the columns whose weighted sum is the reward, and their weights; ``reward`` itself if it is empty.
        others: further columns that may be the reward, which are read for comparison. Cells that are no numbers count
            as missing there. If nothing else is the reward, it is made of them.
        parts: columns of parts of the reward and of further verdicts, likewise.
        given: what the user named: a role of ``columns``, or ``reward``.
    """

    format: str
    columns: Mapping[str, str]
    rewards: Mapping[str, float] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    @property
    def numbers(self) -> dict[str, str]:
        """The columns of numbers by their role.

        Parts of a weighted reward and some others have columns of their own.
        """
        own = {role: column for role, column in self.columns.items() if role in NUMBERS}
        own |= {f"reward {column}": column for column in self.rewards}
        return own | {f"other {column}": column for column in (*self.others, *self.parts)}

    @property
    def texts(self) -> dict[str, str]:
        """The columns of texts by their role."""
        return {role: column for role, column in self.columns.items() if role in TEXTS}

    @property
    def read(self) -> set[str]:
        """All columns that are read."""
        return {*self.columns.values(), *self.numbers.values()}

    @property
    def made_of_others(self) -> bool:
        """Whether the reward is computed from ``others``, which must then hold numbers."""
        return bool(self.others) and not (self.rewards or VERDICTS & self.columns.keys())

    @property
    def renamed(self) -> list[str]:
        """The columns that were found under another name, as ROLE=COLUMN, unless the user or the format named them."""
        usual = RENAMED.get(self.format, {})
        return [
            f"{role}={column}"
            for role, column in self.columns.items()
            if column not in (role, usual.get(role)) and role not in self.given
        ]


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


def layout_of(source: Source, format: str, rewards: Mapping[str, float], renamed: Mapping[str, str]) -> Layout:
    """Return the layout of a file. ``renamed`` maps a role to the user's column, or to "" for none.

    Raises RecordError if a column is missing, with everything that is missing, and for a column that was named in vain.
    """
    _check_named(source, rewards, renamed)
    found, head = source.columns, source.head
    own = {role: name for role, name in RENAMED.get(format, {}).items() if name in found} | dict(renamed)
    columns = _resolved(found, own, head)
    counts, named = format == "counts", VERDICTS & renamed.keys()
    rate = columns.get("share") if "trials" not in columns and comes_once(head, found, renamed) else None
    if counts and (counted := counted_in(found, renamed)):
        columns["correct"] = counted
    unread = {
        "truncated": counts,
        "trials": not counts,
        "share": not counts or "correct" in columns,
        "advantage": format != "trl",  # in TRL's tables it tells which columns are the reward
        "gold": "id" in columns and "gold" not in renamed,
    } | dict.fromkeys(VERDICTS - named, (rewards or named) and not counts)
    columns = {role: name for role, name in columns.items() if not unread.get(role)}
    known = {*columns.values(), *rewards, *UNDERSTOOD}
    further = [column for column in source.numeric if column not in known and not counts]
    usual = verdict_names()
    others = [column for column in further if format == "trl" or column.lower().partition(".")[0] in usual]
    if not (rewards or counts or named):  # in TRL's tables any further number column may be the reward
        if columns.keys() >= VERDICTS:
            others.insert(0, columns.pop("correct"))
        if format == "trl" and "reward" not in found:  # a reward function may have any name
            others = [columns.pop(role) for role in ("reward", "correct") if role in columns] + others
        if VERDICTS & columns.keys():
            others = others[:MOST_OTHERS]
    if rate and not (rewards or others or counts or VERDICTS & columns.keys()):
        columns["share"] = rate
    parts = [column for column in further if PART.search(column.lower()) and column not in others]
    parts += rewards if len(rewards) > 1 else ()
    layout = Layout(
        format,
        columns,
        dict(rewards),
        tuple(others),
        tuple(parts) if rewards or VERDICTS & columns.keys() else (),
        frozenset({*renamed} | ({"reward"} if rewards else set())),
    )
    for role, column in renamed.items():
        if column and columns.get(role) != column and not (role == "group" and column not in found):
            raise RecordError(f"{role} is not read from {NAMES[format]}, got --column {role}={column}; leave it out")
    _check_whole(source, layout)
    return layout


def _resolved(found: Sequence[str], own: Mapping[str, str], head: Head) -> dict[str, str]:
    """Return the column of each role that the table has. ``own`` are the user's choices."""
    if own.get("group") and own["group"] not in found:  # a number of rows that the user gave
        own = {role: name for role, name in own.items() if role != "group"}
    known = [name for name in found if name.lower() not in WORDY or _is_verdict(name, head)]
    columns = {role: name for role in (*NUMBERS, *TEXTS) if (name := resolved(role, known, own))}
    share = columns.get("share")
    if share and not {"reward", "correct", "trials"} & columns.keys() and _is_verdict(share, head):
        columns["correct"] = share
    sampled = resolved("answer", [column for column in found if column != "answer"], {})
    if sampled is not None and "answer" in found and "answer" not in own:  # the known answer, beside the sampled one
        columns |= {"answer": sampled} | ({} if "gold" in columns or "gold" in own else {"gold": "answer"})
    if "split" not in own:
        columns.pop("split", None)
    left = [name for name in found if name not in columns.values()]
    looks = {"split": split_in, "truncated": truncated_in}
    columns = {role: look(head, left) for role, look in looks.items() if role not in own} | columns
    if columns.keys().isdisjoint(("id", "prompt", "group")):  # the prompt is in the messages
        columns["prompt"] = next((name for name in left if all(asked_in(row.get(name)) for row in head)), "")
    if "turn" not in own and "visit" not in found and (turns := turn_in(head, columns, found)):
        columns["turn"], columns["step"] = turns
    elif not own.get("turn"):
        columns |= {"turn": "", "rollout": ""}
    return {role: name for role, name in columns.items() if name}


def _is_verdict(name: str, head: Head) -> bool:
    """Return whether each of the first cells of a column is a verdict, or empty."""
    cells = [number_in(row.get(name)) for row in head]
    return any(cell in (0.0, 1.0) for cell in cells) and all(cell in (0.0, 1.0) or cell != cell for cell in cells)


def _check_named(source: Source, rewards: Mapping[str, float], renamed: Mapping[str, str]) -> None:
    """Raise RecordError for columns that the user named but the table lacks."""
    found = source.columns
    for role, column in renamed.items():
        if role not in NUMBERS and role not in TEXTS:
            raise RecordError(f"column must be one of {', '.join([*NUMBERS, *TEXTS])}, got {shown(role)}; correct it")
        if column and column not in found and not (role == "group" and column.isdecimal() and int(column) > 0):
            raise RecordError(
                f"{source.path} must have the column {column} for {role}, got {source.listed}; correct --column"
            )
    for column in rewards:
        if column not in found:
            raise RecordError(
                f"{source.path} must have the reward column {column}, got {source.listed}; correct --reward"
            )
    if rewards and VERDICTS & renamed.keys():
        raise RecordError("the reward must be named once, got --reward and --column; leave one out")


def _check_whole(source: Source, layout: Layout) -> None:
    """Raise RecordError if the layout lacks columns. The error lists all of them and the nearest names."""
    wanted = ["prompt or id"]
    if layout.columns.get("group", "group") != "group":  # a group's own number stands for its prompt
        wanted = []
    if layout.format == "counts":
        wanted += ["correct or share", "trials"]
    elif not (layout.rewards or layout.others or "share" in layout.columns):
        wanted.append("reward or correct")
    missing = [each for each in wanted if layout.columns.keys().isdisjoint(each.split(" or "))]
    if not missing:
        return
    roles = sorted(role for each in missing for role in each.split(" or "))
    usual = dict.fromkeys(USUAL["share"][1:], "reward") if "reward" in roles else {}
    usual |= {name: role for role in roles for name in USUAL[role]}
    free = [column for column in source.columns if column not in layout.read]
    near = next(
        (
            f"{role}={column}"
            for column in free
            if (close := get_close_matches(column.lower(), usual, 1))
            and ((role := usual[close[0]]) not in NUMBERS or column in source.numeric)
        ),
        "reward=COLUMN" if "reward" in roles else f"{roles[0]}=COLUMN",
    )
    raise RecordError(
        f"{source.path} must have a column {' and a column '.join(missing)}, got {source.listed}; name it by --column, "
        f"as in {near}"
    )
