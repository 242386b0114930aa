"""Read each value that a reward function returns: a reward, None for a row that it does not judge, or a failure.

A score is NaN where a function gave None, which is TRL's way to say that it does not judge this row. It is infinite
where the function failed: it raised, or what it returned is no number.
"""

import copy
import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from typing import Any

from apportion.scheduler.outcomes import read_reward
from apportion.trl.failures import FailedRewards
from apportion.untrusted import shown

logger = logging.getLogger(__name__)

Values = list[float | None]
"""What TRL gets from a function for the completions [N] of one call."""

Logged = list[tuple[str, tuple[Any, ...], Mapping[str, Any]]]
"""Calls of TRL's ``log_extra`` and ``log_metric``: the name of each and its arguments."""

LOGS = ("log_extra", "log_metric")
"""Columns that hold TRL's functions for logging, which a reward function may call."""

GIVEN_UP = 3
"""After an exception a function is called prompt by prompt. So many failed calls in a row end that."""


@dataclass
class RewardReader:
    """Reads what the reward functions ``names`` [F] return, and calls them again as ``allowed`` says.

    A function that raises before it ever returned ends the run, because it is wrong. After that an exception fails only
    the rollouts of the prompts that it is raised for. ``judge`` is the place of the function that says whether a
    completion is correct, None if nobody needs to know. ``returned`` are the functions that have returned, and
    ``problems`` what was last wrong with each.
    """

    names: Sequence[str]
    allowed: FailedRewards = field(default_factory=FailedRewards)
    judge: int | None = None
    returned: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def reading(
        self, place: int, function: Any, wait: Callable[[float], None] = time.sleep, *, whole: bool = False
    ) -> Callable[..., Any]:
        """Return the ``function`` at index ``place``, wrapped so that each completion gets None, a number or infinity.

        It is called again for completions that it failed, after ``wait`` of some seconds, and for those that it gave
        None if it is the only function, or the judge. A further call of a ``whole`` group is for all of its rows. If a
        further call heals none while others have rewards, these rows are at fault, and no call follows.
        """
        name, needed = self.names[place], place == self.judge or len(self.names) == 1

        async def values(columns: Mapping[str, Any]) -> Values:
            count = len(columns["prompts"])
            found, logged, missing = Values([None] * count), None, list(range(count))
            for attempt in range(self.allowed.retries + 1):
                asked, before = list(range(count)) if whole else missing, len(missing)
                try:
                    again, own = await self._read(function, name, _part(columns, asked))
                except Exception:  # it never returned
                    if attempt == self.allowed.retries:
                        raise
                    logger.warning("A reward function failed; it is called again", exc_info=True)
                else:
                    logged = own if logged is None else logged
                    for i, value in zip(asked, again, strict=True):
                        if i in missing:
                            found[i] = value
                    missing = [i for i in missing if found[i] == inf or (needed and found[i] is None)]
                    if not missing or len(missing) == before < count or attempt == self.allowed.retries:
                        break
                wait(self.allowed.seconds_before(attempt))
            for log, args, named in logged or ():
                columns[log](*args, **named)
            return found

        async def read_later(**columns: Any) -> Values:
            return await values(columns)

        def read(**columns: Any) -> Values:
            return _result(values(columns))

        later = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        return read_later if later else read

    async def _read(self, function: Any, name: str, columns: Mapping[str, Any]) -> tuple[Values, Logged | None]:
        """Return the rewards [N] of the completions in ``columns``: one call, or one a prompt after an exception.

        What a call logged before it raised is dropped, and so are columns that lack a row, because a call failed. It
        is None if the call for a single prompt raised.
        """
        try:
            return await self._called(function, name, columns)
        except Exception as error:
            if name not in self.returned:
                raise
            self._tell(name, f"raised {type(error).__name__}: {error}", columns, 0, error)
        prompts, found, logged, failed = columns["prompts"], Values(), Logged(), 0
        groups = [list(own) for _, own in groupby(range(len(prompts)), key=lambda i: prompts[i])]
        if len(groups) == 1:
            return [inf] * len(prompts), None
        for places in groups:
            values, own = Values([inf] * len(places)), None
            if failed < GIVEN_UP:
                values, own = await self._read(function, name, _part(columns, places))
            failed, logged = (failed + 1, logged) if own is None else (0, [*logged, *own])
            found += values
        return found, [each for each in logged if inf not in found or each[0] != "log_extra"]

    async def _called(self, function: Any, name: str, columns: Mapping[str, Any]) -> tuple[Values, Logged]:
        """Return the rewards [N] of one call, and what the function logged."""
        logged = Logged()

        def keep(log: str, *args: Any, **named: Any) -> None:
            logged.append((log, args, named))

        kept = {log: partial(keep, log) for log in LOGS if log in columns}
        values = function(**_copied(columns), **kept)
        if inspect.isawaitable(values):
            values = await values
        wanted = len(columns["prompts"])
        if not isinstance(values, Iterable) or len(values := list(values)) != wanted:
            given = f"{len(values)} rewards" if isinstance(values, list) else "no list"
            raise ValueError(f"{name} must return a list with a reward for each of {wanted} completions, got {given}")
        self.returned.add(name)
        found = Values()
        for place, value in enumerate(values):
            outcome = read_reward(value)
            if outcome.reward is None and value is not None:
                self._tell(name, f"returned {outcome.problem}", columns, place)
            found.append(None if value is None else inf if outcome.reward is None else outcome.reward)
        return found, logged

    def _tell(
        self, name: str, problem: str, columns: Mapping[str, Any], place: int, error: Exception | None = None
    ) -> None:
        """Log each kind of ``problem`` of a function once, with the completion at index ``place``."""
        self.problems[name] = problem
        kind = name, problem.replace(":", ",").partition(",")[0]
        if kind in self._told:
            return
        self._told.add(kind)
        logger.warning(
            "The reward function %s %s, for completion %d of %d, of the prompt %s; rollouts without a reward have "
            "failed, and are not trained on. Further ones are counted as allocation/failed.",
            name,
            problem,
            place,
            len(columns["prompts"]),
            shown(columns["prompts"][place]),
            exc_info=error,
        )


def _result(reading: Coroutine[Any, Any, Values]) -> Values:
    """Return the result of a coroutine that never waits, because the function in it is not asynchronous."""
    try:
        reading.send(None)
    except StopIteration as finished:
        values: Values = finished.value
        return values
    reading.close()
    raise TypeError("a reward function that is not declared async must return its rewards, got something to await")


def _copied(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns without the logging functions. Lists are copied, because a reward function may change them."""
    return {
        name: copy.deepcopy(own) if isinstance(own, list) and name != "environments" else own
        for name, own in columns.items()
        if name not in LOGS
    }


def _part(columns: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Return the columns of the rows with these indices."""
    count = len(columns["prompts"])
    return {
        name: [value[i] for i in places] if isinstance(value, list) and len(value) == count else value
        for name, value in columns.items()
    }
