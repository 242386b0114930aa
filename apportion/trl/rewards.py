"""Scores of a round by TRL's reward functions: every value is read, and rows without a reward are scored again."""

import copy
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from apportion.trl.failures import FailureCount
from apportion.trl.replaced import replaced

logger = logging.getLogger(__name__)

Columns = tuple[Sequence[Any], ...]
"""What TRL's ``_calculate_rewards`` takes: rows, prompts, completions and their ids, each [N] of this rank."""


def score(
    trainer: Any,
    calculate: Callable[..., Tensor],
    columns: Columns,
    functions: Collection[int],
    *,
    whole: bool = False,
) -> Tensor:
    """Return scores [N, F] of the rows of all ranks by ``calculate``, TRL's method. All ranks must call it.

    The reward functions at the places ``functions`` are called here, and read by ``trainer._failures.reader``. Models
    stay as they are. The others give 0. All is called again as ``scored`` says. A further call of a ``whole`` group is
    for all of its rows, and those with a reward keep it.
    """
    ranks, failures = trainer.accelerator.num_processes, trainer._failures
    wanted_shape = (len(columns[0]) * ranks, len(trainer.reward_weights))
    called = [
        zeros if i not in functions else own if isinstance(own, nn.Module) else failures.reader.reading(own, name)
        for i, (own, name) in enumerate(zip(trainer.reward_funcs, trainer.reward_func_names, strict=True))
    ]

    def call(rows: Tensor | None) -> Tensor:
        if rows is None:
            try:
                return calculate(*_copies(*columns))
            except Exception:  # the functions that did not raise log again
                trainer._pending_extra_logs.clear()
                trainer._pending_metrics.clear()
                raise
        of_ranks = rows.view(ranks, -1).cpu()
        asked = torch.ones_like(of_ranks) if whole else of_ranks
        most = int(asked.sum(dim=1).max())
        # all ranks score equally many rows, because TRL gathers their scores: the first one fills up
        places = [(own.nonzero().flatten().tolist() + [0] * most)[:most] for own in asked]
        own = places[trainer.accelerator.process_index]
        shown: dict[str, Any] = {"_pending_extra_logs": defaultdict(list)}  # TRL has the columns of all rows already
        if environments := getattr(trainer, "environments", None):
            shown["environments"] = [environments[i] for i in own]
        with replaced(trainer, **shown):
            found = calculate(*_copies(*([column[i] for i in own] for column in columns)))
        scores = found.new_zeros(wanted_shape)
        scores[[rank * asked.size(1) + i for rank, of_rank in enumerate(places) for i in of_rank]] = found
        return scores

    with replaced(trainer, reward_funcs=called):
        scores = scored(call, failures)
    if scores.shape != wanted_shape:
        raise ValueError(
            "_calculate_rewards must return a row for each completion of all ranks and a column for each reward "
            f"function, {wanted_shape}, got {tuple(scores.shape)}; gather the scores as TRL's method does"
        )
    return scores


def scored(
    call: Callable[[Tensor | None], Tensor], failures: FailureCount, wait: Callable[[float], None] = time.sleep
) -> Tensor:
    """Return scores [N, F] by ``call``, which takes a mask [N] of the rows that it must score, or None for all.

    It is called as often again as ``failures`` allow, for the rows without a reward, and after an exception. If some
    rows have rewards and a further call gives none to the others, these rows are at fault, and no call follows.
    """
    scores: Tensor | None = None
    rows: Tensor | None = None
    before, allowed = -1, failures.allowed
    for attempt in range(allowed.retries + 1):
        try:
            found = call(rows)
        except Exception:
            if attempt == allowed.retries:
                raise
            logger.warning("A reward function failed; it is called again", exc_info=True)
        else:
            scores = found if rows is None or scores is None else found.where(rows.unsqueeze(1), scores)
            if attempt == allowed.retries:
                break
            rows = failures.failed(scores)
            number, before = before, int(rows.sum())
            if not before or number == before < len(rows):
                break
        wait(allowed.seconds_before(attempt))
    assert scores is not None
    return scores


def zeros(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Return a reward of 0 for each completion."""
    return [0.0] * len(completions)


def _copies(*columns: Sequence[Any]) -> Columns:
    """Return copies of the ``columns``, because a reward function may change what it is given."""
    *texts, ids = columns
    return *map(copy.deepcopy, texts), [list(each) for each in ids]
