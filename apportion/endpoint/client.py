"""A client that samples many prompts at once, from servers that honour n and from servers that do not.

One request with n asks for many samples of one prompt, which is prefilled once. The first such request is a probe, and
meanwhile other requests have n = 1. If the reply has one choice, or if n is refused but n = 1 is answered, every later
request has n = 1; so it has after two failures in a row, because some servers refuse n with an error of their own.
Other short replies are kept, and the missing samples are requested again.

A prompt waits for one slot at a time, in turn with the others, and chooses n when it gets the slot. Completions are
returned in the order of their sample numbers, because a rule that saw them as they arrive would favour short ones.

Seeds are derived from (seed, key, number of the first sample in the request). So a run can be repeated, and no two
requests share a seed. The server derives the seeds of the n samples of a request; vLLM counts up from the given one.

A prompt that is refused under three seeds is a failed sample. A server that refuses everything, for a setting or for
want of credit, ends the run. To tell them apart, plain prompts are sent after a refusal, unless a request that was sent
later was answered.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from apportion.endpoint.completion import Completion, EndpointError, Failure, Refusal, Usage
from apportion.messages import Messages

Ask = Callable[[str | Messages, int, int | None], Awaitable[list[Completion]]]
"""Prompt, n and seed -> at least one completion. Raises Failure, Refusal or EndpointError."""

OnArrival = Callable[[int, int | None, Completion], None]
"""Called with the number of a sample, the seed of its request, and the completion, as soon as it arrives."""

PLAIN_PROMPT = "1 + 1 ="
"""A prompt that no server refuses. If it fails too, the server or a setting is at fault, not the prompt."""

REFUSED_SEEDS = 3
"""Requests with different seeds that must be refused before the prompt, and not the sample, is at fault."""

CLOSED = "a sample was awaited after its client was closed; take all within `async with`"


def seed_of(seed: int, key: str, number: int) -> int:
    """Return the seed of the request whose first sample has this ``number``: 31 bits, equal on every machine.

    >>> seed_of(0, "question 1", 0) == seed_of(0, "question 1", 0) != seed_of(0, "question 1", 1)
    True
    """
    digest = hashlib.blake2b(f"{seed} {number} {key}".encode(errors="surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class _Job:
    """A prompt, and a future for the completion of each sample number."""

    prompt: str | Messages
    key: str
    futures: dict[int, asyncio.Future[Completion]]
    on_arrival: OnArrival | None


class Client:
    """Samples from one server with at most ``concurrency`` requests in flight. Made by ``Endpoint.connect``.

    ``usage`` counts requests and tokens so far. ``honours_n`` says whether the server honours n; None while unknown.
    """

    def __init__(self, ask: Ask, usage: Usage, concurrency: int, seed: int | None):
        self.usage = usage
        self.honours_n: bool | None = None
        self._ask = ask
        self._seed = seed
        self._slots = asyncio.Semaphore(concurrency)
        self._probe: asyncio.Task[None] | None = None
        self._answered_until = -math.inf
        self._refused_n = 0
        self._checking = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    async def sample(
        self,
        prompt: str | Messages,
        count: int,
        start: int = 0,
        key: str = "",
        *,
        skip: Collection[int] = (),
        on_arrival: OnArrival | None = None,
    ) -> AsyncGenerator[Completion, None]:
        """Yield ``count`` completions in order.

        Their sample numbers begin at ``start``; those in ``skip`` are left out.

        ``key`` identifies the question in the seeds. ``on_arrival`` gets each completion as soon as it arrives, also
        those that the caller does not wait for. A sample that fails after its retries is a completion with an error.
        ``aclose`` cancels the requests in flight, so put ``contextlib.aclosing`` around a loop that may end early.

        Raises EndpointError for an error that no retry can fix, after the completions before it were yielded.
        """
        loop = asyncio.get_running_loop()
        numbers = [number for number in range(start, start + count) if number not in skip]
        job = _Job(prompt, key, {number: loop.create_future() for number in numbers}, on_arrival)
        running = asyncio.create_task(self._fill(job, numbers))
        self._running.add(running)
        try:
            for future in job.futures.values():
                either: set[asyncio.Future[Any]] = {future, running}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not future.done():
                    error = None if running.cancelled() else running.exception()
                    raise error or RuntimeError(CLOSED)
                yield future.result()
        finally:
            await _cancel(running)
            self._running.discard(running)

    async def aclose(self) -> None:
        """Cancel all requests in flight."""
        for running in list(self._running):
            await _cancel(running)

    async def _fill(self, job: _Job, numbers: Sequence[int]) -> None:
        """Send requests until every future of the job has its completion."""
        try:
            async with asyncio.TaskGroup() as requests:
                await self._ask_for(job, numbers, requests)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ask_for(self, job: _Job, numbers: Sequence[int], requests: asyncio.TaskGroup, attempt: int = 0) -> None:
        """Start the requests for the samples with these numbers, as slots become free."""
        while numbers:
            await self._slots.acquire()
            probing = self._probe is not None and not self._probe.done()
            many = not attempt and (self.honours_n or (self.honours_n is None and not probing))
            n = len(numbers) if many else 1
            request = requests.create_task(self._request(job, numbers[:n], requests, attempt))
            # A callback, because a task that is cancelled before it starts could not release its slot.
            request.add_done_callback(lambda _: self._slots.release())
            if n > 1 and self.honours_n is None:
                self._probe = request
            numbers = numbers[n:]

    async def _request(self, job: _Job, numbers: Sequence[int], requests: asyncio.TaskGroup, attempt: int = 0) -> None:
        """Send one request for these samples, and ask again for those that a short reply left out.

        If a request for many fails, each is asked for on its own, with a seed of another ``attempt``, because one of
        them may be at fault. A refused sample is asked for with other seeds, before its prompt is at fault.
        """
        while True:
            seed = self._seed_of(job.key, numbers[0], attempt)
            try:
                found = await self._completions(job, numbers, seed, first=attempt == 0)
            except Refusal as refusal:
                attempt += 1
                if attempt < REFUSED_SEEDS:
                    continue
                found = [Completion.failed(str(refusal), refused=True)] * len(numbers)
            except Failure as failure:
                if len(numbers) > 1 and failure.of_sample:
                    self._refuse_n()
                    requests.create_task(self._ask_for(job, numbers, requests, attempt + 1))
                    return
                found = [Completion.failed(str(failure))] * len(numbers)
            break
        for number, completion in zip(numbers, found, strict=False):
            if job.on_arrival is not None:
                job.on_arrival(number, seed, completion)
            job.futures[number].set_result(completion)
        if len(found) < len(numbers):
            requests.create_task(self._ask_for(job, numbers[len(found) :], requests))

    def _seed_of(self, key: str, number: int, attempt: int) -> int | None:
        """Return the seed of a request, another one for each attempt."""
        if self._seed is None:
            return None
        return seed_of(self._seed, key if attempt == 0 else f"{key}\n{attempt}", number)

    async def _completions(self, job: _Job, numbers: Sequence[int], seed: int | None, first: bool) -> list[Completion]:
        """Return completions of the first of these samples, at least one. Raises Failure and EndpointError.

        If many are refused, one is asked for.
        """
        sent, n = time.monotonic(), len(numbers)
        try:
            try:
                found = await self._ask(job.prompt, n, seed)
                if n > 1:
                    self._refused_n = 0
                    self.honours_n = len(found) > 1 if self.honours_n is None else self.honours_n
            except Refusal:
                if n == 1:
                    raise
                found = await self._ask(job.prompt, 1, seed)
                self._refuse_n(once=self.honours_n is None)
        except Refusal as refusal:
            if first:
                await self._check_settings(refusal, sent)
            raise
        self._answered_until = max(self._answered_until, sent)
        return found[:n]

    def _refuse_n(self, once: bool = False) -> None:
        """Note that a request for several samples was refused.

        Once may be enough, because a server may fail for one of them.
        """
        self._refused_n += 1
        if once or self._refused_n > 1:
            self.honours_n = False

    async def _check_settings(self, refusal: Refusal, sent: float) -> None:
        """Raise EndpointError if plain prompts are refused too.

        Skip the test if a request sent later than ``sent`` was answered.
        """
        async with self._checking:
            if self._answered_until > sent:
                return
            checked = time.monotonic()
            for attempt in range(REFUSED_SEEDS):
                with suppress(Refusal):
                    await self._ask(PLAIN_PROMPT, 1, self._seed_of(PLAIN_PROMPT, 0, attempt))
                    self._answered_until = checked
                    return
            raise EndpointError(f"{refusal}, for a plain prompt too; change the setting that it names")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # asyncio reports an exception that nobody retrieved
