"""Write the finished batch of a training step to the rollout log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from apportion.checks import encodable, number_array
from apportion.records.log_folder import path_of
from apportion.records.record_writing import write_table_of_step
from apportion.records.rollout_log import COLUMNS, LogText, schema
from apportion.types import Batch, Group, Rollout

if TYPE_CHECKING:
    from pyarrow import Table


class _Use(NamedTuple):
    """How a rollout of a group was used in training."""

    rollout: Rollout
    kept: bool
    advantage: float | None
    weight: float | None

    def stands_for(self, drawn: Rollout | None) -> bool:
        """Return whether this is a reused rollout, in the place of ``drawn`` or after all drawn ones."""
        return self.rollout.step is not None and (drawn is None or drawn.step is None)

    def is_of(self, drawn: Rollout | None) -> bool:
        """Return whether this is ``drawn`` itself; its verdict and reward may differ."""
        own = self.rollout
        return own is drawn or (
            drawn is not None
            and own.completion is drawn.completion
            and (own.answer, own.tokens, own.score_norm) == (drawn.answer, drawn.tokens, drawn.score_norm)
            and (own.round, own.step) == (drawn.round, drawn.step)
        )


class _Row(NamedTuple):
    """One row of a step: the ``number`` of the ``rollout`` among those of its prompt, which has none if it is None."""

    place: int
    number: int | None = None
    rollout: Rollout | None = None
    use: _Use | None = None


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
    check_log_text(log_text)
    path, uses = path_of(folder, step), _uses(batch, groups, advantages, weights)
    write_table_of_step(_table(step, batch, list(_rows(batch, uses)), text, log_text), path)
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


def _uses(
    batch: Batch, groups: Sequence[Group], advantages: ArrayLike | None, weights: ArrayLike | None
) -> list[list[_Use]]:
    """Return the uses of each prompt's rollouts; none for a prompt without a group."""
    found: list[list[_Use]] = [[] for _ in batch.prompts]
    numbers = zip(_as_list("advantages", advantages, groups), _as_list("weights", weights, groups), strict=True)
    place = 0
    for g, group in enumerate(groups):
        pairs = zip(group.rollouts, group.keep.tolist(), strict=True)
        uses = [_Use(rollout, kept, *next(numbers)) for rollout, kept in pairs]
        while place < len(found) and not (batch.prompts[place] == group.prompt and _match(uses, batch.rollouts[place])):
            place += 1
        if place == len(found):
            raise ValueError(
                f"groups must hold the first rollouts of the batch's prompts, in its order, got others in group {g} of "
                f"prompt {group.prompt.text!r}; pass Allocator.groups(batch), and leave rollouts out of the loss with "
                "Group.keep"
            )
        found[place] = uses
        place += 1
    return found


def _match(uses: Sequence[_Use], rollouts: Sequence[Rollout]) -> bool:
    """Return whether ``uses`` are those of the first ``rollouts``."""
    if len(uses) <= len(rollouts) and all(use[0] is drawn for use, drawn in zip(uses, rollouts, strict=False)):
        return True
    return all(use.stands_for(drawn) or use.is_of(drawn) for use, drawn in zip_longest(uses, rollouts[: len(uses)]))


def _rows(batch: Batch, uses: Sequence[Sequence[_Use]]) -> Iterator[_Row]:
    """Yield the rows of a step in order."""
    for place, (rollouts, own) in enumerate(zip(batch.rollouts, uses, strict=True)):
        if not rollouts and not own:
            yield _Row(place)
        for number, (drawn, use) in enumerate(zip_longest(rollouts, own)):
            if use is None or use.rollout.step is None or not use.stands_for(drawn):
                yield _Row(place, number, drawn, use)  # with the verdict and the reward of the batch
                continue
            if drawn is not None:
                yield _Row(place, number, drawn)
            yield _Row(place, number, use.rollout, use)


def _table(step: int, batch: Batch, rows: Sequence[_Row], text: Callable[[Any], str], log_text: LogText) -> Table:
    """Return the table of ``rows``."""
    kinds = schema()
    from pyarrow import Table, array, nulls  # noqa: PLC0415 - an optional extra

    full, written = log_text == "full", time.time()
    shown = encodable if full else hash_of
    places, numbers, rollouts, uses = zip(*rows, strict=True) if rows else ((), (), (), ())
    at = np.array(places, np.int64)
    ids, texts = [prompt.id for prompt in batch.prompts], [encodable(prompt.text) for prompt in batch.prompts]
    cells: dict[str, list[Any]] = {
        name: [each and getattr(each, name) for each in rollouts]
        for name in ("round", "correct", "answer", "reward", "tokens", "score_norm", "completion")
    }
    cells |= {
        "answer": [None if answer is None else shown(answer) for answer in cells["answer"]],
        "completion": [None if each is None else shown(text(each)) for each in cells["completion"]],
        "kept": [use is not None and use.kept for use in uses],
        "advantage": [use and use.advantage for use in uses],
        "weight": [use and use.weight for use in uses],
        "reused_step": [each and each.step for each in rollouts],
    }
    columns = {
        "step": array(np.full(len(at), step)),
        "place": array(at),
        "prompt_id": array(ids, "string").take(array(at)),
        "prompt": array(texts, "string").take(array(at)) if full else nulls(len(at), "string"),
        "predicted": array(batch.belief.mean[at]),
        "asked": array(batch.asked[at]),
        "index": array(numbers, "int64"),
        "written": array(np.full(len(at), written)),
        **{name: array(values, COLUMNS[name]) for name, values in cells.items()},
    }
    return Table.from_arrays([columns[name] for name in COLUMNS], schema=kinds)


def _as_list(name: str, values: ArrayLike | None, groups: Sequence[Group]) -> list[float | None]:
    """Return ``values`` as a list, one for each rollout of the groups; a list of None without ``values``."""
    size = sum(len(group.rollouts) for group in groups)
    if values is None:
        return [None] * size
    array = number_array(name, values)
    if array.shape != (size,):
        raise ValueError(
            f"{name} must be [{size}], one for each rollout of the groups, got {array.shape}; "
            "include rollouts outside keep"
        )
    return array.tolist()
