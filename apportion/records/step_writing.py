"""Write finished batches of training steps to the rollout log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import check_choice, encodable, number_array
from apportion.records.log_folder import path_of
from apportion.records.record_writing import with_nulls, write_rows
from apportion.records.rollout_log import COLUMNS, LogText, schema
from apportion.types import Batch, Floats, Group, Prompt, Rollout

if TYPE_CHECKING:
    from pyarrow import Array

FIELDS = ("round", "correct", "answer", "reward", "tokens", "score_norm", "completion", "truncated", "step")
"""Fields of a rollout that the log has."""

ABSENT = SimpleNamespace(**dict.fromkeys(FIELDS))
"""Stands for the missing rollout of a prompt without one."""


@dataclass(frozen=True, eq=False)
class LoggedStep:
    """A finished step for ``write_steps``, whose arguments have the same names as those of ``write_step``.

    ``written`` is when it was finished, in seconds since 1970.
    """

    step: int
    batch: Batch
    groups: Sequence[Group]
    advantages: ArrayLike | None = None
    weights: ArrayLike | None = None
    written: float = field(default_factory=time.time)


def write_step(
    folder: str | Path,
    step: int,
    batch: Batch,
    groups: Sequence[Group],
    advantages: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    text: Callable[[Any], str] = str,
    log_text: LogText = "full",
) -> Path:
    """Write the finished ``batch`` of a step to its file, which replaces an older one, and return the path.

    ``groups`` are those of ``Allocator.groups``. ``advantages`` [N], as ``advantages_of`` returns them, and ``weights``
    [N] are those of all their rollouts in order. ``text`` turns a completion that is not None into text. With
    ``log_text`` "hashes" the log has hashes of answers and completions, and no prompts but their ids.

    Rollout i of a group must be rollout i of its prompt, with any reward, or a reused one in its place. Rollouts are
    matched by position, because their values may be equal. Groups come in the order of the prompts; a prompt may have
    no group. Raises ValueError for groups of another batch or in another order.
    """
    return write_steps(folder, [LoggedStep(step, batch, groups, advantages, weights)], text, log_text)


def write_steps(
    folder: str | Path, steps: Sequence[LoggedStep], text: Callable[[Any], str] = str, log_text: LogText = "full"
) -> Path:
    """Write consecutive ``steps``, at least one, to one file, and return its path.

    Short steps are written faster together. Arguments and errors are those of ``write_step``.
    """
    check_log_text(log_text)
    path = path_of(folder, steps[0].step, steps[-1].step)
    schema()
    from pyarrow import chunked_array  # noqa: PLC0415 - an optional extra

    parts = [_columns(each, text, log_text) for each in steps]
    write_rows({name: chunked_array([part[name] for part in parts]) for name in parts[0]}, path)
    return path


def check_log_text(log_text: str, name: str = "log_text") -> None:
    """Raise ValueError unless ``log_text`` is a ``LogText``. The error calls it ``name``."""
    check_choice(name, log_text, get_args(LogText))


def hash_of(text: str) -> str:
    """Return a hash of 128 bits, in hexadecimal. Equal texts have equal hashes, and short texts can be guessed.

    >>> hash_of("42") == hash_of("42"), len(hash_of("42"))
    (True, 32)
    """
    return blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


def _rows(batch: Batch, groups: Sequence[Group]) -> Iterator[tuple[int, int | None, Any, int]]:
    """Yield the rows of a step: the prompt's index, the rollout's number, the rollout, its index in all groups or -1.

    Raises ValueError for groups of another batch or in another order.
    """
    left = used = 0
    for place, (prompt, drawn) in enumerate(zip(batch.prompts, batch.rollouts, strict=True)):
        grouped: Sequence[Rollout] = ()
        if left < len(groups) and _fits(groups[left], prompt, drawn):
            grouped = groups[left].rollouts
            left += 1
        if not drawn and not grouped:
            yield place, None, ABSENT, -1
        for number, (own, other) in enumerate(zip_longest(drawn, grouped)):
            reused = other is not None and _stands_for(other, own)
            if own is not None:  # the batch has the verdict and the reward
                yield place, number, own, -1 if other is None or reused else used + number
            if reused:
                yield place, number, other, used + number
        used += len(grouped)
    if left < len(groups):
        raise ValueError(
            f"groups must hold the first rollouts of the batch's prompts, in its order, got others in group {left} "
            f"of prompt {groups[left].prompt.text!r}; pass Allocator.groups(batch), and leave rollouts out of the "
            "loss with Group.keep"
        )


def _fits(group: Group, prompt: Prompt, drawn: Sequence[Rollout]) -> bool:
    """Return whether ``group`` is of ``prompt``, and its rollouts are the first ``drawn`` ones or reused ones.

    The verdict and the reward of a rollout may differ.
    """
    pairs = zip_longest(group.rollouts, drawn[: len(group.rollouts)])
    return prompt == group.prompt and all(
        used is own
        or _stands_for(used, own)
        or (own is not None and used.completion is own.completion and _OTHER(used) == _OTHER(own))
        for used, own in pairs
    )


def _stands_for(used: Rollout, drawn: Rollout | None) -> bool:
    """Return whether ``used`` is a reused rollout that replaces ``drawn`` or follows all drawn ones."""
    return used.step is not None and (drawn is None or drawn.step is None)


_OTHER = attrgetter("answer", "tokens", "score_norm", "round", "step")


def _columns(step: LoggedStep, text: Callable[[Any], str], log_text: LogText) -> dict[str, Array]:
    """Return the columns of the log for a step."""
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    full, batch = log_text == "full", step.batch
    rows = list(_rows(batch, step.groups))
    place, use = (np.array([row[n] for row in rows], np.int64) for n in (0, 3))
    kept = [keep for group in step.groups for keep in group.keep.tolist()]
    cells = {name: [getattr(row[2], name) for row in rows] for name in FIELDS}
    shown = encodable if full else hash_of
    cells["answer"] = [None if each is None else shown(each) for each in cells["answer"]]
    cells["completion"] = [None if each is None else shown(text(each)) for each in cells["completion"]]
    columns = {
        "step": array(np.full(len(rows), step.step)),
        "place": array(place),
        "prompt_id": array([prompt.id for prompt in batch.prompts], "string").take(array(place)),
        "predicted": array(batch.belief.mean[place]),
        "asked": array(batch.asked[place]),
        "index": array([row[1] for row in rows], "int64"),
        "kept": array(np.array([*kept, False], bool)[use]),
        "reused_step": array(cells.pop("step"), "int64"),
        "written": array(np.full(len(rows), step.written)),
        **{name: array(values, COLUMNS[name]) for name, values in cells.items()},
    }
    if full:
        columns["prompt"] = array([encodable(prompt.text) for prompt in batch.prompts], "string").take(array(place))
    for name in ("advantage", "weight"):
        values = _numbers(f"{name}s", getattr(step, f"{name}s"), len(kept))
        columns[name] = with_nulls(np.append(values, np.nan)[use])
    return columns


def _numbers(name: str, values: ArrayLike | None, size: int) -> Floats:
    """Return ``values``, one for each of the groups' ``size`` rollouts; NaN if there are no values."""
    array = np.full(size, np.nan) if values is None else number_array(name, values)
    if array.shape != (size,):
        raise ValueError(
            f"{name} must be [{size}], one for each rollout of the groups, got {array.shape}; "
            "include rollouts outside keep"
        )
    return array
