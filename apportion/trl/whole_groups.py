"""Reward functions that read whole groups: each is called once for every finished group, on rank 0.

An allocator may sample a group in several rounds. A reward function that compares the completions of a prompt, or that
expects a number of them, would see the completions of one round only. With ``whole_groups`` it is called when the
allocator has finished, with all completions of one prompt, in the order in which they were sampled.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from apportion.engines.fresh_rows import Row
from apportion.trl.rewards import attempt


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
    retries: int,
) -> list[Tensor]:
    """Return scores [G, F] of each group by ``calculate``, TRL's method, with 0 outside ``columns``. All ranks call it.

    ``groups`` are the responses of each group on rank 0, None on the others. These call no reward function, but TRL
    gathers their scores. An exception is retried ``retries`` times. Columns that functions log are dropped, because
    TRL's table has its rows already.
    """
    found = []
    with only_functions(trainer, () if groups is None else columns):
        for i, (place, size) in enumerate(zip(request.places, request.sizes, strict=True)):
            inputs = [copy.deepcopy(rows[place]) for _ in range(size)]
            prompts = [row["prompt"] for row in inputs]
            contents = [""] * size if groups is None else [response.content for response in groups[i]]
            ids = [[0]] * size if groups is None else [response.tokens.tolist() for response in groups[i]]
            found.append(attempt(trainer, calculate, (inputs, prompts, contents, ids), retries)[:size].cpu())
            trainer._pending_extra_logs.clear()
    return found


@contextmanager
def only_functions(trainer: Any, columns: Collection[int]) -> Iterator[None]:
    """Let TRL call the reward functions at ``columns`` alone. The others give 0."""
    functions = trainer.reward_funcs
    trainer.reward_funcs = [function if i in columns else _zeros for i, function in enumerate(functions)]
    try:
        yield
    finally:
        trainer.reward_funcs = functions


def _zeros(completions: Sequence[Any], **columns: Any) -> list[float]:
    return [0.0] * len(completions)
