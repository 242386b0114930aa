"""Write the finished batch of a training step to the rollout log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from apportion.checks import encodable, number_array
from apportion.records.log_folder import path_of
from apportion.records.record_writing import write_table_of_step
from apportion.records.rollout_log import schema
from apportion.types import Batch, Group, Rollout


def write_step(
    folder: Path,
    step: int,
    batch: Batch,
    groups: Sequence[Group],
    advantages: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    text: Callable[[Any], str] = str,
) -> Path:
    """Write the finished ``batch`` of a step to its file, which replaces an older one, and return the path.

    ``groups`` are those of ``Allocator.groups``. ``advantages`` [N], as ``advantages_of`` returns them, and ``weights``
    [N] are those of all their rollouts in order. ``text`` turns a completion that is not None into text.

    Rollout i of a group must be rollout i of its prompt, with any reward, or a reused one in its place. Rollouts are
    matched by position, because their values may be equal. Groups come in the order of the prompts; a prompt may have
    no group. Raises ValueError for groups of another batch or in another order.
    """
    path, kinds = path_of(folder, step), schema()
    from pyarrow import Table  # noqa: PLC0415 - an optional extra

    uses = _uses(batch, groups, _as_list("advantages", advantages, groups), _as_list("weights", weights, groups))
    write_table_of_step(Table.from_pylist(list(_rows(step, batch, uses, text)), kinds), path)
    return path


@dataclass(frozen=True, slots=True)
class _Use:
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
        if drawn is None or self.rollout.completion is not drawn.completion:
            return False
        return replace(self.rollout, correct=drawn.correct, reward=drawn.reward) == drawn


def _uses(
    batch: Batch, groups: Sequence[Group], advantages: Sequence[float | None], weights: Sequence[float | None]
) -> list[list[_Use]]:
    """Return the uses of each prompt's rollouts; none for a prompt without a group."""
    found: list[list[_Use]] = [[] for _ in batch.prompts]
    numbers, place = zip(advantages, weights, strict=True), 0
    for g, group in enumerate(groups):
        pairs = zip(group.rollouts, group.keep, strict=True)
        uses = [_Use(rollout, bool(kept), *next(numbers)) for rollout, kept in pairs]
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
    return all(use.stands_for(drawn) or use.is_of(drawn) for use, drawn in zip_longest(uses, rollouts[: len(uses)]))


def _rows(
    step: int, batch: Batch, uses: Sequence[Sequence[_Use]], text: Callable[[Any], str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a step. Columns that a row leaves out are null."""
    predicted, written = batch.belief.mean, time.time()
    for place, prompt in enumerate(batch.prompts):
        shared = {
            "step": step,
            "place": place,
            "prompt_id": prompt.id,
            "prompt": encodable(prompt.text),
            "predicted": predicted[place],
            "asked": batch.asked[place],
            "kept": False,
            "written": written,
        }
        if not batch.rollouts[place] and not uses[place]:
            yield shared
        for index, (drawn, use) in enumerate(zip_longest(batch.rollouts[place], uses[place])):
            reused = use if use is not None and use.stands_for(drawn) else None
            if drawn is not None:
                yield shared | _cells(index, drawn, None if reused else use, text)
            if reused is not None:
                yield shared | _cells(index, reused.rollout, reused, text)


def _cells(index: int, rollout: Rollout, use: _Use | None, text: Callable[[Any], str]) -> dict[str, Any]:
    """Return the cells of one rollout, without those that its prompt shares."""
    cells = {name: getattr(rollout, name) for name in ("round", "correct", "reward", "tokens", "score_norm")}
    cells |= {
        "index": index,
        "answer": None if rollout.answer is None else encodable(rollout.answer),
        "reused_step": rollout.step,
    }
    cells["completion"] = None if rollout.completion is None else encodable(text(rollout.completion))
    return cells if use is None else cells | {"kept": use.kept, "advantage": use.advantage, "weight": use.weight}


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
