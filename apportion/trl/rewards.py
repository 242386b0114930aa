"""Scores of a round by TRL's reward functions: every value is read, and rows without a reward are scored again.

A score is NaN where a function gave None, which is TRL's way to say that it does not judge this row. It is infinite
where the function failed: it raised, or what it returned is no number.
"""

import copy
import inspect
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from apportion.engines.outcomes import read_reward
from apportion.trl.failures import FailedRewards, failed_rows
from apportion.trl.replaced import replaced
from apportion.untrusted import shown

logger = logging.getLogger(__name__)

Columns = tuple[Sequence[Any], ...]
"""What TRL's ``_calculate_rewards`` takes: rows, prompts, completions and their ids, each [N] of this rank."""

Logged = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""A call of TRL's ``log_extra`` or ``log_metric``: its name and arguments."""

GIVEN_UP = 3
"""After an exception a function is called for one prompt at a time, until it has failed for so many in a row."""


@dataclass
class RewardReader:
    """Reads what reward functions return.

    A function that raises before it ever returned ends the run, because it is wrong. After that an exception fails only
    the rollouts of the prompts that it is raised for. ``returned`` are the names of the functions that have returned,
    and ``problems`` what was last wrong with each.
    """

    returned: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def reading(self, function: Any, name: str) -> Any:
        """Return ``function`` such that TRL gets None, a number, or infinity for each completion. Models stay as is."""
        if isinstance(function, nn.Module):
            return function
        called = function
        while isinstance(called, partial):
            called = called.func
        if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__):

            async def read_later(**columns: Any) -> list[float | None]:
                return await self._values(function, name, columns)

            return read_later

        def read(**columns: Any) -> list[float | None]:
            return _result(self._values(function, name, columns))

        return read

    async def _values(self, function: Any, name: str, columns: Mapping[str, Any]) -> list[float | None]:
        """Return the rewards [N] of the completions in ``columns``: one call, or one a prompt after an exception.

        What a call logged before it raised is dropped, and so are the columns if any call raised, because they would
        lack rows.
        """
        logged: list[Logged] = []
        try:
            found = await self._called(function, name, columns, logged)
            _log(columns, logged)
            return found
        except Exception as error:
            if name not in self.returned:
                raise
            self._tell(name, f"raised {type(error).__name__}: {error}", type(error).__name__, columns, 0, error)
        prompts = columns["prompts"]
        groups = [list(own) for _, own in groupby(range(len(prompts)), key=lambda i: prompts[i])]
        found, failed, raised = list[float | None](), 0, False
        logged.clear()
        for places in groups:
            values: list[float | None] = [inf] * len(places)
            if len(groups) > 1 and failed < GIVEN_UP:
                own: list[Logged] = []
                try:
                    values = await self._called(function, name, _part(columns, places), own)
                    failed, logged = 0, [*logged, *own]
                except Exception:
                    failed, raised = failed + 1, True
                    logger.debug("%s failed for the prompt %s", name, shown(prompts[places[0]]), exc_info=True)
            found += values
        _log(columns, [each for each in logged if not (raised and each[0] == "log_extra")])
        return found

    async def _called(
        self, function: Any, name: str, columns: Mapping[str, Any], logged: list[Logged]
    ) -> list[float | None]:
        """Return the rewards [N] of one call. What the function logs is added to ``logged``."""
        kept = {log: partial(_keep, logged, log) for log in ("log_extra", "log_metric") if log in columns}
        values = function(**{**columns, **kept})
        if inspect.isawaitable(values):
            values = await values
        wanted = len(columns["prompts"])
        try:
            values = list(values)
        except TypeError:
            values = None
        if values is None or len(values) != wanted:
            given = "no list" if values is None else f"{len(values)} rewards"
            raise ValueError(f"{name} must return a list with a reward for each of {wanted} completions, got {given}")
        self.returned.add(name)
        found: list[float | None] = []
        for place, value in enumerate(values):
            outcome = read_reward(value)
            if outcome.reward is None and value is not None:
                self._tell(name, f"returned {outcome.problem}", outcome.problem.split(",")[0], columns, place)
            found.append(None if value is None else inf if outcome.reward is None else outcome.reward)
        return found

    def _tell(
        self,
        name: str,
        problem: str,
        kind: str,
        columns: Mapping[str, Any],
        place: int,
        error: Exception | None = None,
    ) -> None:
        """Log the first ``problem`` of each ``kind`` of a function, with the completion at ``place``."""
        self.problems[name] = problem
        if (name, kind) in self._told:
            return
        self._told.add((name, kind))
        sources = columns.get("data_source")
        logger.warning(
            "The reward function %s %s, for completion %d of %d, data source %s, of the prompt %s; rollouts without a "
            "reward have failed, and are not trained on. Further ones are counted as allocation/failed.",
            name,
            problem,
            place,
            len(columns["prompts"]),
            shown(sources[place]) if isinstance(sources, list) else "unknown",
            shown(columns["prompts"][place]),
            exc_info=error,
        )


def score(
    trainer: Any,
    calculate: Callable[..., Tensor],
    columns: Columns,
    *,
    allowed: FailedRewards,
    verdict: int | None,
    whole: bool = False,
) -> Tensor:
    """Return scores [N, F] of the rows of all ranks by ``calculate``, TRL's method. All ranks must call it.

    It is called again as ``scored`` says. ``verdict`` is the column that says whether a completion is correct, None if
    nobody needs to know. A further call of a ``whole`` group is for all of its rows, and those with a reward keep it.
    """
    ranks = trainer.accelerator.num_processes
    wanted_shape = (len(columns[0]) * ranks, len(trainer.reward_weights))

    def call(rows: Tensor | None) -> Tensor:
        if rows is None:
            return _logged_once(trainer, calculate, _copies(*columns))
        of_ranks = rows.view(ranks, -1).cpu()
        asked = torch.ones_like(of_ranks) if whole else of_ranks
        most = int(asked.sum(dim=1).max())
        # all ranks score equally many rows, because TRL gathers their scores: the first one fills up
        places = [(own.nonzero().flatten().tolist() + [0] * most)[:most] for own in asked]
        own = places[trainer.accelerator.process_index]
        with _environments_of(trainer, own):
            found = _logged_once(trainer, calculate, _copies(*([column[i] for i in own] for column in columns)))
        scores = found.new_zeros(wanted_shape)
        scores[[rank * asked.size(1) + i for rank, of_rank in enumerate(places) for i in of_rank]] = found
        return scores

    scores = scored(call, lambda scores: failed_rows(scores, trainer._failures.judged(scores, verdict)), allowed)
    if scores.shape != wanted_shape:
        raise ValueError(
            "_calculate_rewards must return a row for each completion of all ranks and a column for each reward "
            f"function, {wanted_shape}, got {tuple(scores.shape)}; gather the scores as TRL's method does"
        )
    return scores


def scored(
    call: Callable[[Tensor | None], Tensor],
    failed: Callable[[Tensor], Tensor],
    allowed: FailedRewards,
    wait: Callable[[float], None] = time.sleep,
) -> Tensor:
    """Return scores [N, F] by ``call``, which takes a mask [N] of the rows that it must score, or None for all.

    It is called up to ``allowed.retries`` times again, for the rows without a reward, whose mask [N] ``failed`` returns
    of scores, and after an exception. If some rows have rewards and a further call gives none to the others, these rows
    are at fault, and no call follows.
    """
    scores: Tensor | None = None
    rows: Tensor | None = None
    before = -1
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
            rows = failed(scores)
            number, before = before, int(rows.sum())
            if not before or number == before < len(rows):
                break
        wait(allowed.seconds_before(attempt))
    assert scores is not None
    return scores


def called_functions(trainer: Any, columns: Collection[int]) -> AbstractContextManager[None]:
    """Let TRL call the reward functions at ``columns`` alone, and read what they return. The others give 0."""
    pairs = enumerate(zip(trainer.reward_funcs, trainer.reward_func_names, strict=True))
    called = [trainer._reader.reading(*pair) if i in columns else zeros for i, pair in pairs]
    return replaced(trainer, reward_funcs=called)


def _copies(*columns: Sequence[Any]) -> Columns:
    """Return copies of the ``columns``, because a reward function may change what it is given."""
    *texts, ids = columns
    return *map(copy.deepcopy, texts), [list(each) for each in ids]


def _logged_once(trainer: Any, calculate: Callable[..., Tensor], columns: Columns) -> Tensor:
    """Return the scores of ``calculate``. What functions log before an exception is dropped: they log it again."""
    before = {log: _copied(getattr(trainer, log)) for log in ("_pending_extra_logs", "_pending_metrics")}
    try:
        return calculate(*columns)
    except Exception:
        vars(trainer).update(before)
        raise


def _result(reading: Coroutine[Any, Any, list[float | None]]) -> list[float | None]:
    """Return the result of a coroutine that waits for nothing, because its function is not asynchronous."""
    try:
        reading.send(None)
    except StopIteration as finished:
        values: list[float | None] = finished.value
        return values
    reading.close()
    raise TypeError("a reward function that is not declared async must return its rewards, got something to await")


def _part(columns: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Return the columns of the rows at ``places``."""
    count = len(columns["prompts"])
    return {
        name: [value[i] for i in places] if isinstance(value, list) and len(value) == count else value
        for name, value in columns.items()
    }


def _keep(logged: list[Logged], log: str, *args: Any, **named: Any) -> None:
    logged.append((log, args, named))


def _log(columns: Mapping[str, Any], logged: Sequence[Logged]) -> None:
    """Pass on to TRL what a function logged."""
    for log, args, named in logged:
        columns[log](*args, **named)


def zeros(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Return a reward of 0 for each completion."""
    return [0.0] * len(completions)


def _environments_of(trainer: Any, rows: Sequence[int]) -> AbstractContextManager[None]:
    """Show reward functions the environments of ``rows`` alone, and drop the extra columns that they log."""
    environments = getattr(trainer, "environments", None)
    own = {"environments": [environments[i] for i in rows]} if environments else {}
    return replaced(trainer, _pending_extra_logs=_copied({}), **own)


def _copied(logged: Mapping[str, list[Any]]) -> defaultdict[str, list[Any]]:
    return defaultdict(list, {name: list(values) for name, values in logged.items()})
