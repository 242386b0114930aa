"""Reward functions that read whole groups: each is called once for every finished group, on rank 0.

An allocator may sample a group in several rounds. A reward function that compares the completions of a prompt, or that
expects a number of them, would see the completions of one round only. With ``whole_groups`` it is called when the
allocator has finished, with all completions of one prompt, in the order in which they were sampled.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from apportion.engines.fresh_rows import Row
from apportion.trl.failures import FailedRewards
from apportion.trl.rewards import called_functions, score


@dataclass(frozen=True)
class GroupsRequest:
    """Score the finished groups of the prompts at ``places`` [P], of ``sizes`` [P] completions."""

    places: Sequence[int]
    sizes: Sequence[int]


def score_groups(
    trainer: Any,
    calculate: Callable[..., Tensor],
    rows: Sequence[Row],
    request: GroupsRequest,
    groups: Sequence[Sequence[Any]] | None,
    *,
    columns: Collection[int],
    allowed: FailedRewards,
) -> list[Tensor]:
    """Return scores [G, F] of each group by ``calculate``, TRL's method, with 0 outside ``columns``. All ranks call it.

    ``groups`` are the responses of each group on rank 0, None on the others. These call no reward function, but TRL
    gathers their scores. Failures are scored again as ``allowed``. Columns that functions log are dropped, because
    TRL's table has its rows already.
    """
    found = []
    with called_functions(trainer, () if groups is None else columns):
        for i, (place, size) in enumerate(zip(request.places, request.sizes, strict=True)):
            inputs = [copy.deepcopy(rows[place]) for _ in range(size)]
            prompts = [row["prompt"] for row in inputs]
            contents = [""] * size if groups is None else [response.content for response in groups[i]]
            ids = [[0]] * size if groups is None else [response.tokens.tolist() for response in groups[i]]
            given = (inputs, prompts, contents, ids)
            found.append(score(trainer, calculate, given, allowed=allowed, verdict=None)[:size].cpu())
            trainer._pending_extra_logs.clear()
    return found
