"""Samples of many prompts at once, each prompt's in order, from a server that may honour n or not.

One request with n asks for many samples of one prompt, which is prefilled once. Whether a server honours n is found
out: the first request with n probes, and meanwhile others go one by one. A reply with one choice, or a refusal of n
where n = 1 is answered: one request a sample from then on. A reply that is short otherwise is kept, and the rest is
asked for again.

A prompt waits for one slot at a time, in turn with the others, and decides when it has the slot how much to ask for.
Completions are given in the order of their sample numbers: a rule that saw them as they arrive would favour the short.

Seeds are derived from (seed, key, number of the first sample in the request), so that a run can be repeated and no two
requests share one. Of n samples in one request the server derives the seeds: vLLM counts up from the one given.

A refused prompt is a failed sample and a refused setting ends the run. Which it is, is found out as well: unless some
request has been answered already, a plain prompt is sent with the same settings.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from apportion.samplers.completion import Completion, EndpointError, Failure, Refusal, Usage

Ask = Callable[[str, int, int | None], Awaitable[list[Completion]]]
"""One request for a prompt, n and a seed: at least one completion, or else Failure, Refusal or EndpointError."""

PLAIN_PROMPT = "1 + 1 ="
"""What is asked to tell a server that is away, or a setting that it refuses, from one prompt that it refuses."""


def seed_of(seed: int, key: str, number: int) -> int:
    """The seed of the request whose first sample has this ``number``: 31 bits, the same on every machine.

    >>> seed_of(0, "question 1", 0) == seed_of(0, "question 1", 0) != seed_of(0, "question 1", 1)
    True
    """
    digest = hashlib.blake2b(f"{seed} {number} {key}".encode(errors="surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class _Job:
    """A prompt, and a place for the completion of each sample number."""

    prompt: str
    key: str
    places: dict[int, asyncio.Future[Completion]]


class Client:
    """Samples from one server, with at most ``concurrency`` requests in flight; ``Endpoint.connect`` makes it.

    ``usage`` counts what has been spent so far; ``honours_n`` is whether the server honours n, None while unknown.
    """

    def __init__(self, ask: Ask, usage: Usage, concurrency: int, seed: int | None):
        self.usage = usage
        self.honours_n: bool | None = None
        self._ask = ask
        self._seed = seed
        self._slots = asyncio.Semaphore(concurrency)
        self._probe: asyncio.Task[None] | None = None
        self._answered = False
        self._checking = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    async def sample(
        self, prompt_text: str, count: int, start: int = 0, key: str = ""
    ) -> AsyncGenerator[Completion, None]:
        """Exactly ``count`` completions of a prompt, in the order of their sample numbers from ``start``.

        ``key`` names the question, for the seeds. A sample that fails for good is a completion with an error. Leaving
        early cancels the requests in flight: by ``aclose``, so use ``contextlib.aclosing`` around the loop.

        Raises EndpointError for what no retry mends, once the completions before it have been given.
        """
        loop = asyncio.get_running_loop()
        job = _Job(prompt_text, key, {number: loop.create_future() for number in range(start, start + count)})
        running = asyncio.create_task(self._answer(job, range(start, start + count)))
        self._running.add(running)
        try:
            for place in job.places.values():
                either: set[asyncio.Future[Any]] = {place, running}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not place.done():
                    raise _reason(running)
                yield place.result()
        finally:
            await _cancel(running)
            self._running.discard(running)

    async def aclose(self) -> None:
        """Cancels all requests in flight."""
        for running in list(self._running):
            await _cancel(running)

    async def _answer(self, job: _Job, numbers: range) -> None:
        try:
            async with asyncio.TaskGroup() as requests:
                await self._ask_for(job, numbers, requests)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ask_for(self, job: _Job, numbers: range, requests: asyncio.TaskGroup) -> None:
        """Starts the requests for the samples with these numbers, as slots become free."""
        while numbers:
            await self._slots.acquire()
            n = self._at_once(len(numbers))
            request = requests.create_task(self._request(job, numbers[:n], requests))
            # Not within the task: one that is cancelled before it starts would keep its slot.
            request.add_done_callback(lambda _: self._slots.release())
            if n > 1 and self.honours_n is None:
                self._probe = request
            numbers = numbers[n:]

    def _at_once(self, count: int) -> int:
        probing = self._probe is not None and not self._probe.done()
        return count if self.honours_n or (self.honours_n is None and not probing) else 1

    async def _request(self, job: _Job, numbers: range, requests: asyncio.TaskGroup) -> None:
        try:
            found = await self._completions(job, numbers)
        except Failure as failure:
            found = [Completion.failed(str(failure))] * len(numbers)
        for number, completion in zip(numbers, found, strict=False):
            job.places[number].set_result(completion)
        if len(found) < len(numbers):
            requests.create_task(self._ask_for(job, numbers[len(found) :], requests))

    async def _completions(self, job: _Job, numbers: range) -> list[Completion]:
        """At least one completion, for the first of these samples. Raises Failure and EndpointError."""
        seed = None if self._seed is None else seed_of(self._seed, job.key, numbers[0])
        try:
            found = await self._as_many(job.prompt, len(numbers), seed)
        except Refusal as refusal:
            await self._check_settings(refusal)
            raise
        self._answered = True
        return found[: len(numbers)]

    async def _as_many(self, prompt: str, n: int, seed: int | None) -> list[Completion]:
        """Asks for n completions, or for one where n is refused."""
        try:
            found = await self._ask(prompt, n, seed)
        except Refusal:
            if n == 1:
                raise
            found = await self._ask(prompt, 1, seed)
            self.honours_n = False
        if n > 1 and self.honours_n is None:
            self.honours_n = len(found) > 1
        return found

    async def _check_settings(self, refusal: Refusal) -> None:
        """Raises EndpointError where a plain prompt is refused too; it is sent only if nothing was answered yet."""
        async with self._checking:
            if self._answered:
                return
            try:
                await self._ask(PLAIN_PROMPT, 1, self._seed)
            except Refusal:
                raise EndpointError(f"{refusal}, for a plain prompt too; change the setting that it names") from None
            self._answered = True


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at, for asyncio reports an exception that nobody looked at


def _reason(task: asyncio.Task[None]) -> BaseException:
    """Why a task ended with samples missing."""
    error = None if task.cancelled() else task.exception()
    return error or RuntimeError("a sample was awaited after its client was closed; take all within `async with`")
