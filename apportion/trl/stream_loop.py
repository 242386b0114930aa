"""TRL's rollout loop for a stream: it samples by TRL's client, tools and environments what a scheduler requests.

A ``StreamWorker`` in the trainer requests rollouts, each of them a group of its own to TRL's loop, and gets them back
with scores. TRL's loop draws from its iterator whenever a slot is free, and here only while there is a request. What
is finished while the reward functions run is scored together in their next call.
"""

import asyncio
import logging
import multiprocessing
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from apportion.runs.children import end_with_parent
from apportion.trl.reading import RewardReader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that the trainer is experimental, which docs/stream.md says
    from trl.experimental.async_grpo.async_rollout_worker import (
        _RETRYABLE_HTTP_ERRORS,
        RolloutGroup,
        RolloutSample,
        _AsyncRolloutLoop,
    )

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.01
"""Seconds that TRL's loop sleeps when it has nothing to do."""


@dataclass(frozen=True, slots=True)
class StreamCompletion:
    """A sampled completion: TRL's rows of it, its scores [F], and how many tokens the policy wrote.

    A completion in messages has several rows if the chat template changed earlier messages.
    """

    rows: list[RolloutSample]
    scores: tuple[float, ...]
    tokens: int


@dataclass
class ScoredCompletions:
    """Completions by request number. None marks one that the server refused.

    ``reader`` knows what is wrong with the reward functions, and which ones have returned.
    """

    completions: Sequence[tuple[int, StreamCompletion | None]]
    reader: RewardReader
    enqueued_at: float = 0.0
    """Set by TRL."""


class StreamLoop(_AsyncRolloutLoop):  # type: ignore[misc]
    """TRL's loop in the sampling process. ``link`` brings pairs of a request number and its prompt's row."""

    def __init__(self, *, link: Connection, reader: RewardReader, **settings: Any) -> None:
        end_with_parent()
        trainer = multiprocessing.parent_process()
        if trainer is not None and not trainer.is_alive():  # it was killed while this process started
            os._exit(1)
        super().__init__(**settings)
        self._link, self._reader, self._asked = link, reader, deque[tuple[int, int]]()
        self._groups_to_score = _Sampled()
        functions = enumerate(settings["reward_funcs"])
        self.reward_funcs = [reader.reading(place, function) for place, function in functions]

    async def _run_loops(self, stop_event: asyncio.Event) -> None:
        asyncio.get_running_loop().add_reader(self._link.fileno(), self._take_requests)
        await super()._run_loops(stop_event)

    def _take_requests(self) -> None:
        try:
            self._asked.extend(self._link.recv())
        except (EOFError, OSError):
            os._exit(1)  # the trainer is gone

    async def _generate_loop(self, stop_event: asyncio.Event) -> None:
        """Run TRL's loop until everything that was requested is sampled."""
        while not stop_event.is_set():
            self._heartbeat_value.value = time.time()
            await super()._generate_loop(_Unasked(self._asked, stop_event))
            await asyncio.sleep(IDLE_SECONDS)

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        while True:
            number, row = self._asked.popleft()
            yield number, self.dataset[row]

    async def _generate_one(self, prompt: Any, *, group_id: int, **given: Any) -> Any:
        """Sample as TRL does, then report a free slot.

        If the server refuses a request to the end, only this rollout fails.
        """
        try:
            found = await super()._generate_one(prompt, group_id=group_id, **given)
        except _RETRYABLE_HTTP_ERRORS as error:
            logger.warning("a rollout failed at the vLLM server: %s: %s", type(error).__name__, error)
            found = [], [], [], 0, 0, None
        self.rollout_buffer.put_nowait(group_id)
        return found

    async def _score_group(self, group: RolloutGroup) -> list[ScoredCompletions]:
        """Score all that is sampled by TRL's method, whose advantages are not used."""
        groups = [group]
        while not self._groups_to_score.empty():
            groups.append(self._groups_to_score.get_nowait())
        groups.sort(key=lambda each: int(each.group_id))  # those of a prompt stand together
        sampled, samples = [each for each in groups if any(each.completions_sequences)], iter(())
        if sampled:
            with np.errstate(invalid="ignore"):  # a function that failed gives infinity
                samples = iter(await super()._score_group(merged(sampled)))
        found = []
        for each in groups:
            rows = list(islice(samples, sum(map(len, each.completions_sequences))))
            scores = tuple(rows[0].metrics[f"rewards/{name}"] for name in self.reward_func_names) if rows else ()
            completion = StreamCompletion(rows, scores, len(each.completions_ids[0])) if rows else None
            found.append((each.group_id, completion))
        reader = self._reader
        known = replace(reader, returned=set(reader.returned), problems=dict(reader.problems))
        return [ScoredCompletions(found, known)]


@dataclass(frozen=True)
class _Unasked:
    """Replaces TRL's stop event: TRL's loop checks it before each draw, and it is also set if nothing is requested."""

    asked: Sequence[Any]
    stop_event: asyncio.Event

    def is_set(self) -> bool:
        return not self.asked or self.stop_event.is_set()


class _Sampled(asyncio.Queue[RolloutGroup]):
    """The queue of rollouts to score. It drops the end marker that TRL's loop adds when it returns."""

    def put_nowait(self, item: RolloutGroup | None) -> None:
        if item is not None:
            super().put_nowait(item)


def merged(groups: Sequence[RolloutGroup]) -> RolloutGroup:
    """Return ``groups`` joined into one: their lists and their columns are concatenated."""
    first = groups[0]
    lists = [each.name for each in fields(RolloutGroup) if isinstance(getattr(first, each.name), list)]
    columns = {
        name: list(chain.from_iterable(each.reward_kwargs[name] for each in groups)) for name in first.reward_kwargs
    }
    joined = {name: list(chain.from_iterable(getattr(each, name) for each in groups)) for name in lists}
    return replace(first, reward_kwargs=columns, **joined)
