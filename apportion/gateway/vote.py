"""One vote on a request: sample in waves, count answers in the order of the sample numbers, stop by the rule.

What is counted, and when a vote ends, is said in ``vote.count``. What is still in flight then is cancelled. A
completion that calls tools votes for its calls: the same functions with the same arguments are one answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from apportion.answers import Equivalence, read_answer
from apportion.checks import encodable
from apportion.endpoint import Completion
from apportion.endpoint.reply import choice_text
from apportion.gateway.body import VoteRequest
from apportion.gateway.errors import SERVER, GatewayError, UpstreamError
from apportion.gateway.upstream import Bill
from apportion.questions import Question
from apportion.vote.count import Count, expected_disagreement
from apportion.vote.sample import Sample

MAX_FAILURES = 3
"""Samples that may fail in a row, each after its retries, before a vote ends."""

Draw = Callable[[int], Awaitable[dict[str, Any]]]
"""The number of a sample -> the reply with its completion. Raises UpstreamError."""


@dataclass
class VotedSample:
    """One sample that arrived: its number, its answer in the words of its class, and its reply while it is needed."""

    number: int
    answer: str | None
    reply: dict[str, Any] | None


class RunningVote:
    """The samples of one request so far, each drawn by ``draw``, and how the vote ended.

    ``give_up`` whole samples without any answer end it.
    """

    def __init__(self, request: VoteRequest, draw: Draw, equivalence: Equivalence, give_up: int) -> None:
        self.request = request
        self.samples: list[VotedSample] = []
        self.errors: list[UpstreamError] = []
        self.cancelled = 0
        self.ended: str | None = None
        silent = request.voting.max_samples + 1 if request.unvoted else max(give_up, request.n)
        question = Question("request", encodable(request.question).strip() or "?")
        self.count = Count(question, "", request.voting, silent, equivalence, max_failures=MAX_FAILURES)
        self._draw = draw
        self._started = time.monotonic()

    async def run(self, seconds: float) -> None:
        """Sample until the vote ends, after at most ``seconds``. Raise GatewayError if no sample arrived."""
        try:
            async with asyncio.timeout(seconds):
                while self.ended is None and (wave := self.count.next_wave()):
                    await self._wave(wave)
        except TimeoutError:
            self.ended = "deadline"
        stopped = self.count.stopped
        if self.ended is None:
            self.ended = "failures" if stopped == "refused" else stopped
            if self.request.unvoted and self.ended in ("rule", "max_samples"):
                self.ended = self.request.unvoted
        if not self.samples:
            if self.errors:
                raise self.errors[-1]
            said = f"no completion arrived within {seconds:g} s; try again, or raise --deadline-seconds"
            raise GatewayError(504, said, kind=SERVER, code="deadline")

    @property
    def answer(self) -> str | None:
        """The winner so far; None without answers."""
        return self.count.winner

    def votes(self) -> dict[str, int]:
        """Return the votes for each answer, the winner first and then by votes."""
        counts = dict(self.count.batch.votes[0])
        order = sorted(counts, key=lambda answer: (answer != self.answer, -counts[answer]))
        return {answer: counts[answer] for answer in order}

    def chosen(self) -> list[VotedSample]:
        """Return the samples of the choices: the first of each of the best answers, then others in order."""
        if self.request.unvoted:
            return self.samples[: self.request.n]
        firsts = {sample.answer: sample for sample in reversed(self.samples)}
        best = [firsts[answer] for answer in self.votes()][: self.request.n]
        others = [sample for sample in self.samples if sample.reply is not None and sample not in best]
        return (best + others)[: self.request.n]

    def ballot(self, bill: Bill) -> dict[str, Any]:
        """Return the ballot of the ended vote, as JSON."""
        votes, voting, unvoted = self.votes(), self.request.voting, self.request.unvoted
        expected = (
            None if self.answer is None or unvoted else expected_disagreement(voting, self.count.batch, self.answer)
        )
        return {
            "answer": self.answer,
            "share": votes[self.answer] / sum(votes.values()) if self.answer is not None else None,
            "votes": votes,
            "samples": len(self.count.samples),
            "unparsed": sum(sample.answer is None for sample in self.samples),
            "failed": len(self.errors),
            "cancelled": self.cancelled,
            "stopped": self.ended,
            "disagreement": expected,
            "rule": None if unvoted else voting.rule.name,
            "max_samples": voting.max_samples,
            "waves": self.count.batch.round,
            "texts": len({sample.text_hash for sample in self.count.arrived}),
            "chosen": [{"sample": each.number, "answer": each.answer} for each in self.chosen()],
            "temperature": self.request.temperature,
            "requests": bill.requests,
            "uncounted": bill.uncounted,
            "seconds": round(time.monotonic() - self._started, 3),
            "errors": list(dict.fromkeys(str(error) for error in self.errors)),
        }

    async def _wave(self, wave: range) -> None:
        """Take the samples of ``wave`` at once and count them in order, until the vote ends."""
        tasks = [asyncio.ensure_future(self._draw(number)) for number in wave]
        counted = 0
        try:
            for number, task in zip(wave, tasks, strict=True):
                ended = await self._add(number, task)
                counted += 1
                if ended or self.ended:
                    break
        finally:
            self.cancelled += len(wave) - counted
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _add(self, number: int, task: Awaitable[dict[str, Any]]) -> bool:
        """Count the sample that ``task`` takes. Return whether the vote has ended."""
        try:
            reply = await task
        except UpstreamError as error:
            self.errors.append(error)
            if not (error.again or error.refused):
                self.ended = "failures"
            failed = Completion.failed(str(error), refused=False)
            return await self.count.add(Sample.of("request", "", number, None, failed))
        choice = reply["choices"][0]
        text, reasoning = choice_text(choice)
        completion = Completion(text, None, None, choice.get("finish_reason"), reasoning=reasoning)
        sample = Sample.of("request", "", number, None, completion)
        answer = calls_of(choice["message"])
        if answer is None and not sample.cut_while_thinking:
            answer = await read_answer(self.request.extractor, text)
        ended = await self.count.add(sample.with_answer(answer).without_text())
        joined = self.count.batch.rollouts[0][-1].answer
        known = any(each.answer == joined for each in self.samples)
        kept = not known or len(self.samples) < self.request.n
        self.samples.append(VotedSample(number, joined, reply if kept else None))
        return ended


def calls_of(message: Mapping[str, Any]) -> str | None:
    """Return the tool calls of a message as one answer, whatever the order of their arguments; None without calls.

    >>> calls_of({"tool_calls": [{"id": "a", "function": {"name": "add", "arguments": '{"y": 2, "x": 1}'}}]})
    '[["add", {"x": 1, "y": 2}]]'
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return None
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    read = [[each.get("name"), _arguments(each.get("arguments"))] for each in functions if isinstance(each, dict)]
    return encodable(json.dumps(read, sort_keys=True, ensure_ascii=False))


def _arguments(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text
