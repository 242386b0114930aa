"""Scores of a round by TRL's reward functions, which are called again for completions without a reward."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from apportion.trl.failures import failed_rows

logger = logging.getLogger(__name__)

Columns = tuple[Sequence[Any], ...]
"""What TRL's ``_calculate_rewards`` takes: rows, prompts, completions and their ids, each [N] of this rank."""


def score(
    trainer: Any, calculate: Callable[..., Tensor], columns: Columns, *, retries: int, verdict: int | None
) -> Tensor:
    """Return scores [N, F] of the rows of all ranks by ``calculate``, TRL's method. All ranks must call it.

    It is called up to ``retries`` times again after an exception, and for rows without a reward. ``verdict`` is the
    column that says whether a completion is correct, None if nobody needs to know.
    """
    scores = attempt(trainer, calculate, columns, retries)
    wanted_shape = (len(columns[0]) * trainer.accelerator.num_processes, len(trainer.reward_weights))
    if scores.shape != wanted_shape:
        raise ValueError(
            "_calculate_rewards must return a row for each completion of all ranks and a column for each reward "
            f"function, {wanted_shape}, got {tuple(scores.shape)}; gather the scores as TRL's method does"
        )
    for _ in range(retries):
        failed = failed_rows(scores, trainer._failures.judged(scores, verdict))
        failed = failed.view(trainer.accelerator.num_processes, -1).cpu()
        most = int(failed.sum(dim=1).max())
        if not most:
            break
        # all ranks score equally many rows, because TRL gathers their scores: the first one fills up
        places = [(own.nonzero().flatten().tolist() + [0] * most)[:most] for own in failed]
        own = places[trainer.accelerator.process_index]
        with _environments_of(trainer, own):
            again = attempt(trainer, calculate, tuple([column[i] for i in own] for column in columns), retries)
        rows = torch.tensor([rank * failed.size(1) + i for rank, of_rank in enumerate(places) for i in of_rank])
        wanted = failed.flatten()[rows]
        scores[rows[wanted].to(scores.device)] = again[wanted.to(again.device)]
    return scores


def attempt(trainer: Any, calculate: Callable[..., Tensor], columns: Columns, retries: int) -> Tensor:
    """Return the scores of ``calculate``. The last exception is raised, the others are logged.

    What reward functions logged before an exception is dropped, because they log it again.
    """
    pending = (trainer._pending_extra_logs, trainer._pending_metrics)
    before = [_copied(logged) for logged in pending]
    for _ in range(retries):
        try:
            return calculate(*columns)
        except Exception:
            logger.warning("A reward function failed; it is called again", exc_info=True)
            for logged, values in zip(pending, before, strict=True):
                _restore(logged, values)
    return calculate(*columns)


@contextmanager
def _environments_of(trainer: Any, rows: Sequence[int]) -> Iterator[None]:
    """Show reward functions the environments of ``rows`` alone, and keep their extra columns as they are."""
    environments = getattr(trainer, "environments", None)
    logged = _copied(trainer._pending_extra_logs)
    if environments:
        trainer.environments = [environments[i] for i in rows]
    try:
        yield
    finally:
        if environments:
            trainer.environments = environments
        _restore(trainer._pending_extra_logs, logged)


def _copied(logged: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in logged.items()}


def _restore(logged: dict[str, list[Any]], values: Mapping[str, list[Any]]) -> None:
    logged.clear()
    logged.update(_copied(values))
