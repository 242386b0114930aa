"""One vote on a request: sample in waves, count answers in the order of the sample numbers, stop by the rule.

What is counted, and when a vote ends, is said in ``vote.count``. What is still in flight then is cancelled. A
completion that calls tools votes for its calls: the same functions with the same arguments are one answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from apportion.answers import Equivalence, read_answer
from apportion.checks import encodable
from apportion.endpoint import Completion
from apportion.endpoint.reply import choice_text, finish_reason
from apportion.gateway.body import VoteRequest
from apportion.gateway.errors import SERVER, GatewayError, UpstreamError
from apportion.gateway.upstream import Bill
from apportion.questions import Question
from apportion.vote.count import Count
from apportion.vote.sample import Sample

MAX_FAILURES = 3
"""Consecutive failed samples, each after its retries, that end a vote."""

FROM_BALLOT = ["answer", "share", "samples", "unparsed", "failed", "cancelled", "waves", "texts"]
"""Fields of ``Ballot`` that are also in the ballot of a reply."""

DrawReply = Callable[[int], Awaitable[dict[str, Any]]]
"""The number of a sample -> the reply with its completion. Raises UpstreamError."""


class RunningVote:
    """The samples of one request so far, each drawn by ``draw``, and how the vote ended.

    ``give_up`` whole samples without any answer end it.
    """

    def __init__(self, request: VoteRequest, draw: DrawReply, equivalence: Equivalence, give_up: int) -> None:
        self.request = request
        self.errors: list[UpstreamError] = []
        self.ended: str = "deadline"
        silent = request.voting.max_samples + 1 if request.unvoted else max(give_up, request.n)
        question = Question("request", encodable(request.question).strip() or "?")
        self.count = Count(question, "", request.voting, silent, equivalence, max_failures=MAX_FAILURES)
        self._draw = draw
        self._replies: dict[int, dict[str, Any]] = {}

    async def run(self, seconds: float) -> None:
        """Sample until the vote ends, after at most ``seconds``. Raise GatewayError if no sample arrived."""
        try:
            async with asyncio.timeout(seconds):
                whole = await self.count.run(self._samples, {})
            self.ended = self.count.stopped if whole and not self.count.refused else "failures"
            if self.request.unvoted and self.ended in ("rule", "max_samples"):
                self.ended = self.request.unvoted
        except TimeoutError:
            pass  # the best answer so far is returned
        self._ballot = await self.count.ballot()
        if not self.answers:
            if self.errors:
                raise self.errors[-1]
            said = f"no completion arrived within {seconds:g} s; try again, or raise --deadline-seconds"
            raise GatewayError(504, said, kind=SERVER, code="deadline")

    @property
    def answers(self) -> dict[int, str | None]:
        """The answers of the samples that arrived, by sample number. Each is spelled as the first of its class."""
        arrived = zip(self.count.arrived, self.count.batch.rollouts[0], strict=True)
        return {sample.number: counted.answer for sample, counted in arrived}

    @property
    def firsts(self) -> dict[str | None, int]:
        """The number of the first sample of each answer."""
        return {answer: number for number, answer in reversed(self.answers.items())}

    @property
    def replies(self) -> dict[int, dict[str, Any]]:
        """The replies that may be returned, by number: those of the first n samples, and the first of each answer."""
        numbers = {*list(self.answers)[: self.request.n], *self.firsts.values()}
        return {number: self._replies[number] for number in sorted(numbers)}

    @property
    def answer(self) -> str | None:
        """The winner so far; None without answers."""
        return self.count.winner

    def votes(self) -> dict[str, int]:
        """Return the votes for each answer, the winner first and then by votes."""
        counts = self.count.batch.votes[0]
        return {answer: counts[answer] for answer in sorted(counts, key=lambda x: (x != self.answer, -counts[x]))}

    def chosen(self) -> dict[int, dict[str, Any]]:
        """Return the replies of the choices by number: the first of each of the best answers, then others in order."""
        firsts, replies = self.firsts, self.replies
        best = [] if self.request.unvoted else [firsts[answer] for answer in self.votes()]
        return {number: replies[number] for number in list(dict.fromkeys([*best, *replies]))[: self.request.n]}

    def ballot(self, bill: Bill) -> dict[str, Any]:
        """Return the ballot of the ended vote, as JSON."""
        counted, voting, unvoted = self._ballot, self.request.voting, self.request.unvoted
        return {name: getattr(counted, name) for name in FROM_BALLOT} | {
            "votes": self.votes(),
            "stopped": self.ended,
            "disagreement": None if counted.answer is None or unvoted else counted.disagreement,
            "rule": None if unvoted else voting.rule.name,
            "max_samples": voting.max_samples,
            "chosen": [{"sample": number, "answer": self.answers[number]} for number in self.chosen()],
            "temperature": self.request.temperature,
            "requests": bill.requests,
            "uncounted": bill.uncounted,
            "seconds": round(counted.seconds, 3),
            "errors": list(counted.errors),
        }

    async def _samples(self, numbers: Sequence[int]) -> AsyncGenerator[Sample, None]:
        """Draw the samples of a wave at once, and yield them in order.

        Stop at a failure that all others would share.
        """
        self._replies = self.replies
        tasks = [asyncio.ensure_future(self._draw(number)) for number in numbers]
        try:
            for number, task in zip(numbers, tasks, strict=True):
                try:
                    reply = await task
                except UpstreamError as error:
                    self.errors.append(error)
                    yield Sample.of("request", "", number, None, Completion.failed(str(error)))
                    if error.of_request:
                        return
                else:
                    self._replies[number] = reply
                    yield await self._read(number, reply["choices"][0])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, number: int, choice: dict[str, Any]) -> Sample:
        """Return the sample of a choice: its answer, without its text."""
        text, reasoning = choice_text(choice)
        completion = Completion(text, None, None, finish_reason(choice), reasoning=reasoning)
        sample = Sample.of("request", "", number, None, completion)
        answer = calls_of(choice["message"])
        if answer is None and not sample.states_nothing:
            answer = await read_answer(self.request.extractor, text)
        return sample.with_answer(answer).without_text()


def calls_of(message: Mapping[str, Any]) -> str | None:
    """Return the tool calls of a message as one answer, whatever the order of their arguments; None without calls.

    A call of something else than a function, such as a custom tool, is compared whole, but for its id.

    >>> calls_of({"tool_calls": [{"id": "a", "function": {"name": "add", "arguments": '{"y": 2, "x": 1}'}}]})
    '[["add", {"x": 1, "y": 2}]]'
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return None
    return encodable(json.dumps([_called(call) for call in calls], sort_keys=True, ensure_ascii=False))


def _called(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    if not isinstance(function, dict):
        return {name: value for name, value in call.items() if name not in ("id", "index")}
    return [function.get("name"), _arguments(function.get("arguments"))]


def _arguments(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text
