"""Write finished batches of training steps to the rollout log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest
from operator import attrgetter, is_
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

FIELDS = ("round", "correct", "answer", "reward", "tokens", "score_norm", "completion", "step")
"""What the log says about a rollout."""

ABSENT = SimpleNamespace(**dict.fromkeys(FIELDS))
"""Stands for the rollout of a prompt that has none."""


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
    write_rows(_columns(steps, text, log_text), path)
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


@dataclass(frozen=True)
class _Rows:
    """The rows of a file as lists.

    ``prompts`` has the place of each row's prompt among those of all steps. ``numbers`` has the place of each rollout
    among those of its prompt. ``uses`` has its place in all groups, or -1.
    """

    prompts: list[int] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)
    rollouts: list[Any] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)

    def add_step(self, batch: Batch, groups: Sequence[Group], prompts: int, used: int) -> None:
        """Add the rows of a step after ``prompts`` prompts and ``used`` rollouts in groups of earlier ones.

        Raises ValueError for groups of another batch or in another order.
        """
        left = 0
        for place, drawn in enumerate(batch.rollouts):
            grouped: Sequence[Rollout] = ()
            if left < len(groups) and _fits(groups[left], batch.prompts[place], drawn):
                grouped = groups[left].rollouts
                left += 1
            self._add(prompts + place, drawn, grouped, used)
            used += len(grouped)
        if left < len(groups):
            raise ValueError(
                f"groups must hold the first rollouts of the batch's prompts, in its order, got others in group {left} "
                f"of prompt {groups[left].prompt.text!r}; pass Allocator.groups(batch), and leave rollouts out of the "
                "loss with Group.keep"
            )

    def _add(self, prompt: int, drawn: Sequence[Rollout], grouped: Sequence[Rollout], used: int) -> None:
        """Add the rows of one prompt. The first of ``grouped`` is number ``used`` in the groups."""
        before = len(self.prompts)
        if not drawn and not grouped:
            self._append(None, ABSENT, -1)
        elif any(rollout.step is not None for rollout in grouped):
            for number, (own, other) in enumerate(zip_longest(drawn, grouped)):
                reused = other is not None and _stands_for(other, own)
                if own is not None:  # with the verdict and the reward of the batch
                    self._append(number, own, -1 if other is None or reused else used + number)
                if reused:
                    self._append(number, other, used + number)
        else:
            self.numbers.extend(range(len(drawn)))
            self.rollouts.extend(drawn)
            self.uses.extend(range(used, used + len(grouped)))
            self.uses.extend([-1] * (len(drawn) - len(grouped)))
        self.prompts.extend([prompt] * (len(self.numbers) - before))

    def _append(self, number: int | None, rollout: Any, use: int) -> None:
        self.numbers.append(number)
        self.rollouts.append(rollout)
        self.uses.append(use)


def _fits(group: Group, prompt: Prompt, drawn: Sequence[Rollout]) -> bool:
    """Return whether ``group`` is of ``prompt``, and has the first of its ``drawn`` rollouts or reused ones."""
    grouped = group.rollouts
    if prompt != group.prompt:
        return False
    if len(grouped) <= len(drawn) and all(map(is_, grouped, drawn)):
        return True
    pairs = zip_longest(grouped, drawn[: len(grouped)])
    return all(_stands_for(used, own) or (own is not None and _same(used, own)) for used, own in pairs)


def _stands_for(used: Rollout, drawn: Rollout | None) -> bool:
    """Return whether ``used`` is a reused rollout, in the place of ``drawn`` or after all drawn ones."""
    return used.step is not None and (drawn is None or drawn.step is None)


def _same(used: Rollout, drawn: Rollout) -> bool:
    """Return whether ``used`` is ``drawn`` itself; its verdict and reward may differ."""
    return used.completion is drawn.completion and _OTHER(used) == _OTHER(drawn)


_OTHER = attrgetter("answer", "tokens", "score_norm", "round", "step")


def _columns(steps: Sequence[LoggedStep], text: Callable[[Any], str], log_text: LogText) -> dict[str, Array]:
    """Return the columns of the log for ``steps``."""
    schema()
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    rows, full = _Rows(), log_text == "full"
    prompts = [prompt for each in steps for prompt in each.batch.prompts]
    kept = [keep for each in steps for group in each.groups for keep in group.keep.tolist()]
    sizes = [sum(len(group.rollouts) for group in each.groups) for each in steps]
    begins = np.cumsum([0, *(len(each.batch.prompts) for each in steps)])
    for each, begin, used in zip(steps, begins.tolist(), np.cumsum([0, *sizes]).tolist(), strict=False):
        rows.add_step(each.batch, each.groups, begin, used)
    at, uses = np.array(rows.prompts, np.int64), np.array(rows.uses, np.int64)
    of_step = np.searchsorted(begins, at, side="right") - 1
    cells = {name: list(map(attrgetter(name), rows.rollouts)) for name in FIELDS}
    shown = encodable if full else hash_of
    cells["answer"] = [None if each is None else shown(each) for each in cells["answer"]]
    cells["completion"] = [None if each is None else shown(text(each)) for each in cells["completion"]]
    columns = {
        "step": array(np.array([each.step for each in steps])[of_step]),
        "place": array(at - begins[of_step]),
        "prompt_id": array([prompt.id for prompt in prompts], "string").take(array(at)),
        "predicted": array(np.concatenate([each.batch.belief.mean for each in steps])[at]),
        "asked": array(np.concatenate([each.batch.asked for each in steps])[at]),
        "index": array(rows.numbers, "int64"),
        "kept": array(np.array([*kept, False], bool)[uses]),
        "reused_step": array(cells.pop("step"), "int64"),
        "written": array(np.array([each.written for each in steps])[of_step]),
        **{name: array(values, COLUMNS[name]) for name, values in cells.items()},
    }
    if full:
        columns["prompt"] = array([encodable(prompt.text) for prompt in prompts], "string").take(array(at))
    for name in ("advantage", "weight"):
        values = [
            _numbers(f"{name}s", getattr(each, f"{name}s"), size) for each, size in zip(steps, sizes, strict=True)
        ]
        columns[name] = with_nulls(np.concatenate([*values, [np.nan]])[uses])
    return columns


def _numbers(name: str, values: ArrayLike | None, size: int) -> Floats:
    """Return ``values``, one for each of ``size`` rollouts of the groups; nan without ``values``."""
    array = np.full(size, np.nan) if values is None else number_array(name, values)
    if array.shape != (size,):
        raise ValueError(
            f"{name} must be [{size}], one for each rollout of the groups, got {array.shape}; "
            "include rollouts outside keep"
        )
    return array
