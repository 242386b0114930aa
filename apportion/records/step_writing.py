"""Write finished batches of training steps to the rollout log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, repeat, zip_longest
from operator import attrgetter, is_
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import encodable, number_array
from apportion.records.log_folder import path_of
from apportion.records.record_writing import write_rows
from apportion.records.rollout_log import COLUMNS, LogText, schema
from apportion.types import Batch, Floats, Group, Rollout

if TYPE_CHECKING:
    from pyarrow import Table

FIELDS = ("round", "correct", "answer", "reward", "tokens", "score_norm", "completion", "step")
"""What the log says about a rollout."""

ABSENT = SimpleNamespace(**dict.fromkeys(FIELDS))
"""Stands for the rollout of a prompt that has none."""

Row = tuple[int, int | None, Any, int]
"""Place of the prompt, number of the rollout among those of its prompt, rollout, and its place in the groups, or -1."""


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
    folder: Path,
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
    folder: Path, steps: Sequence[LoggedStep], text: Callable[[Any], str] = str, log_text: LogText = "full"
) -> Path:
    """Write consecutive ``steps``, at least one, to one file, and return its path.

    Short steps are written faster together. Arguments and errors are those of ``write_step``.
    """
    check_log_text(log_text)
    path = path_of(folder, steps[0].step, steps[-1].step)
    schema()
    from pyarrow import concat_tables  # noqa: PLC0415 - an optional extra

    write_rows(concat_tables([_table(each, text, log_text) for each in steps]), path)
    return path


def check_log_text(log_text: str, name: str = "log_text", also: Sequence[str] = ()) -> None:
    """Raise ValueError unless ``log_text`` is a ``LogText`` or in ``also``. The error calls it ``name``."""
    known = (*get_args(LogText), *also)
    if log_text not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {log_text!r}; check the spelling")


def hash_of(text: str) -> str:
    """Return a hash of 128 bits, in hexadecimal. Equal texts have equal hashes, and short texts can be guessed.

    >>> hash_of("42") == hash_of("42"), len(hash_of("42"))
    (True, 32)
    """
    return blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


def _rows(batch: Batch, groups: Sequence[Group]) -> list[Row]:
    """Return the rows of a step in order. Raise ValueError for groups of another batch or in another order."""
    rows: list[Row] = []
    place = used = 0
    for g, group in enumerate(groups):
        while place < len(batch.prompts) and not _fits(group, batch, place):
            rows += _rows_of(place, batch.rollouts[place])
            place += 1
        if place == len(batch.prompts):
            raise ValueError(
                f"groups must hold the first rollouts of the batch's prompts, in its order, got others in group {g} of "
                f"prompt {group.prompt.text!r}; pass Allocator.groups(batch), and leave rollouts out of the loss with "
                "Group.keep"
            )
        rows += _rows_of(place, batch.rollouts[place], group.rollouts, used)
        used += len(group.rollouts)
        place += 1
    for rest in range(place, len(batch.prompts)):
        rows += _rows_of(rest, batch.rollouts[rest])
    return rows


def _rows_of(place: int, drawn: Sequence[Rollout], grouped: Sequence[Rollout] = (), used: int = 0) -> Iterable[Row]:
    """Return the rows of one prompt. The first of ``grouped`` is number ``used`` in the groups."""
    if not drawn and not grouped:
        return [(place, None, ABSENT, -1)]
    uses = chain(range(used, used + len(grouped)), repeat(-1))
    if any(rollout.step is not None for rollout in grouped):
        return _rows_with_reused(place, drawn, grouped, used)
    return zip(repeat(place), range(len(drawn)), drawn, uses, strict=False)


def _rows_with_reused(place: int, drawn: Sequence[Rollout], grouped: Sequence[Rollout], used: int) -> Iterator[Row]:
    for number, (own, other) in enumerate(zip_longest(drawn, grouped)):
        reused = other is not None and _stands_for(other, own)
        if own is not None:  # with the verdict and the reward of the batch
            yield place, number, own, -1 if other is None or reused else used + number
        if reused:
            yield place, number, other, used + number


def _fits(group: Group, batch: Batch, place: int) -> bool:
    """Return whether ``group`` is of the prompt at ``place``, and has the first of its rollouts or reused ones."""
    drawn, grouped = batch.rollouts[place], group.rollouts
    if batch.prompts[place] != group.prompt:
        return False
    if len(grouped) <= len(drawn) and all(map(is_, grouped, drawn)):
        return True
    pairs = zip_longest(grouped, drawn[: len(grouped)])
    return all(_stands_for(used, own) or _is(used, own) for used, own in pairs)


def _stands_for(used: Rollout, drawn: Rollout | None) -> bool:
    """Return whether ``used`` is a reused rollout, in the place of ``drawn`` or after all drawn ones."""
    return used.step is not None and (drawn is None or drawn.step is None)


def _is(used: Rollout, drawn: Rollout | None) -> bool:
    """Return whether ``used`` is ``drawn`` itself; its verdict and reward may differ."""
    if drawn is None or used.completion is not drawn.completion:
        return False
    return all(getattr(used, name) == getattr(drawn, name) for name in _SAME)


_SAME = ("answer", "tokens", "score_norm", "round", "step")


def _table(logged: LoggedStep, text: Callable[[Any], str], log_text: LogText) -> Table:
    """Return the rows of a step as a table."""
    from pyarrow import Table, array, nulls  # noqa: PLC0415 - an optional extra

    batch, groups, full = logged.batch, logged.groups, log_text == "full"
    shown = encodable if full else hash_of
    kept = np.concatenate([*(group.keep for group in groups), [False]]).astype(bool)
    advantages, weights = (_numbers(name, getattr(logged, name), len(kept) - 1) for name in ("advantages", "weights"))
    places, numbers, rollouts, uses = zip(*rows, strict=True) if (rows := _rows(batch, groups)) else ((), (), (), ())
    cells = dict(zip(FIELDS, zip(*map(attrgetter(*FIELDS), rollouts), strict=True), strict=True)) if rows else {}
    at, used = np.array(places, np.int64), np.array(uses, np.int64)
    ids, texts = [prompt.id for prompt in batch.prompts], [encodable(prompt.text) for prompt in batch.prompts]
    columns = {
        "step": array(np.full(len(at), logged.step)),
        "place": array(at),
        "prompt_id": array(ids, "string").take(array(at)),
        "prompt": array(texts, "string").take(array(at)) if full else nulls(len(at), "string"),
        "predicted": array(batch.belief.mean[at]),
        "asked": array(batch.asked[at]),
        "index": array(numbers, "int64"),
        "answer": array([None if answer is None else shown(answer) for answer in cells.get("answer", ())], "string"),
        "completion": array(
            [None if each is None else shown(text(each)) for each in cells.get("completion", ())], "string"
        ),
        "kept": array(kept[used]),
        "advantage": array(advantages[used], mask=np.isnan(advantages[used])),
        "weight": array(weights[used], mask=np.isnan(weights[used])),
        "reused_step": array(cells.get("step", ()), "int64"),
        "written": array(np.full(len(at), logged.written)),
    }
    columns |= {
        name: array(cells.get(name, ()), COLUMNS[name])
        for name in ("round", "correct", "reward", "tokens", "score_norm")
    }
    return Table.from_arrays([columns[name] for name in COLUMNS], schema=schema())


def _numbers(name: str, values: ArrayLike | None, size: int) -> Floats:
    """Return ``values``, one for each rollout of the groups, and nan for a rollout outside; nan without ``values``."""
    if values is None:
        return np.full(size + 1, np.nan)
    array = number_array(name, values)
    if array.shape != (size,):
        raise ValueError(
            f"{name} must be [{size}], one for each rollout of the groups, got {array.shape}; "
            "include rollouts outside keep"
        )
    return np.append(array, np.nan)
