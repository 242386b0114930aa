"""One vote on a request: sample in waves, count answers in the order of the sample numbers, stop by the rule.

The order is not that of arrival, because short completions arrive first. What is still in flight when the rule stops is
cancelled. A completion that calls tools votes for its calls: the same functions with the same arguments are one answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from apportion.answers import AnswerClasses, Equivalence, for_question, read_answer
from apportion.checks import encodable
from apportion.endpoint.reply import choice_text
from apportion.gateway.body import VoteRequest
from apportion.gateway.errors import SERVER, GatewayError, UpstreamError
from apportion.gateway.upstream import Bill
from apportion.types import Plan, Prompt, Rollout
from apportion.vote.count import expected_disagreement

MAX_FAILURES = 3
"""Samples that may fail in a row, each after its retries, before a vote ends."""

Draw = Callable[[int], Awaitable[dict[str, Any]]]
"""The number of a sample -> the reply with its completion. Raises UpstreamError."""

End = Literal["rule", "max_samples", "greedy", "off", "unanswered", "failures", "deadline"]


@dataclass
class VotedSample:
    """One sample that arrived: its number, its answer in the words of its class, and its reply while it is needed."""

    number: int
    answer: str | None
    reply: dict[str, Any] | None


@dataclass
class RunningVote:
    """The samples of one request so far, and how the vote ended.

    Args:
        request: what is asked for.
        draw: takes one sample.
        classes: which answers are the same.
        give_up: number of samples without any answer after which the vote ends.
    """

    request: VoteRequest
    draw: Draw
    classes: AnswerClasses
    give_up: int
    samples: list[VotedSample] = field(default_factory=list)
    errors: list[UpstreamError] = field(default_factory=list)
    texts: set[int] = field(default_factory=set)
    cancelled: int = 0
    ended: End | None = None
    _failed_last: int = 0
    _drawn: int = 0

    def __post_init__(self) -> None:
        self.batch = self.request.voting.start([Prompt("a request")])
        self._started = time.monotonic()

    async def run(self, seconds: float) -> None:
        """Sample until the vote ends, after at most ``seconds``. Raise GatewayError if no sample arrived."""
        try:
            async with asyncio.timeout(seconds):
                await self._sample()
        except TimeoutError:
            self.ended = "deadline"
        if not self.samples:
            if self.errors:
                raise self.errors[-1]
            said = f"no completion arrived within {seconds:g} s; try again, or raise --deadline-seconds"
            raise GatewayError(504, said, kind=SERVER, code="deadline")

    @property
    def answer(self) -> str | None:
        """The winner so far; None without answers."""
        return self.request.voting.winner(self.batch, 0)

    @property
    def _disagreement(self) -> float:
        return expected_disagreement(self.request.voting, self.batch, self.answer)

    def votes(self) -> dict[str, int]:
        """Return the votes for each answer, the winner first and then by votes."""
        counts = dict(self.batch.votes[0])
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
        votes = self.votes()
        return {
            "answer": self.answer,
            "share": votes[self.answer] / sum(votes.values()) if self.answer is not None else None,
            "votes": votes,
            "samples": self._drawn,
            "unparsed": sum(sample.answer is None for sample in self.samples),
            "failed": len(self.errors),
            "cancelled": self.cancelled,
            "stopped": self.ended,
            "disagreement": None if self.answer is None or self.request.unvoted else self._disagreement,
            "rule": None if self.request.unvoted else self.request.voting.rule.name,
            "max_samples": self.request.voting.max_samples,
            "waves": self.batch.round,
            "texts": len(self.texts),
            "chosen": [{"sample": each.number, "answer": each.answer} for each in self.chosen()],
            "temperature": self.request.temperature,
            "requests": bill.requests,
            "uncounted": bill.uncounted,
            "seconds": round(time.monotonic() - self._started, 3),
            "errors": list(dict.fromkeys(str(error) for error in self.errors)),
        }

    async def _sample(self) -> None:
        voting = self.request.voting
        plan = voting.plan(self.batch)
        while plan and self.ended is None:
            await self._wave(int(plan.counts[0]))
            plan = voting.plan(self.batch)
        if self.ended is None:
            most = int(self.batch.asked[0]) == voting.max_samples
            self.ended = self.request.unvoted or ("max_samples" if most else "rule")

    async def _wave(self, size: int) -> None:
        """Take ``size`` samples at once and count them in order, until the vote ends."""
        before, first, rollouts = self.batch, self._drawn, list[Rollout]()
        tasks = [asyncio.ensure_future(self.draw(first + place)) for place in range(size)]
        counted = 0
        try:
            for place, task in enumerate(tasks):
                rollouts += await self._count(first + place, task)
                counted += 1
                self._drawn += 1
                if rollouts:  # a sample that failed casts no vote, and another one takes its place
                    self.batch = before.add(Plan(np.array([len(rollouts)])), [rollouts])
                if self.ended or self.request.voting.finished(self.batch, 0):
                    break
        finally:
            self.cancelled += size - counted
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _count(self, number: int, task: Awaitable[dict[str, Any]]) -> list[Rollout]:
        """Add the sample that ``task`` takes, and return its rollout; none if it failed."""
        try:
            reply = await task
        except UpstreamError as error:
            self.errors.append(error)
            self._failed_last += 1
            if not (error.again or error.refused) or self._failed_last == MAX_FAILURES:
                self.ended = "failures"
            return []
        self._failed_last = 0
        choice = reply["choices"][0]
        text, _ = choice_text(choice)
        self.texts.add(hash(text))
        answer = calls_of(choice["message"])
        if answer is None:
            stated = await read_answer(self.request.extractor, text)
            answer = None if stated is None else await self.classes.join(stated)
        known = any(sample.answer == answer for sample in self.samples)
        kept = not known or len(self.samples) < self.request.n
        self.samples.append(VotedSample(number, answer, reply if kept else None))
        silent = len(self.samples) >= self.give_up and not any(each.answer is not None for each in self.samples)
        if silent and not self.request.unvoted and len(self.samples) >= self.request.n:
            self.ended = "unanswered"
        return [Rollout(answer=answer)]


def new_vote(request: VoteRequest, draw: Draw, equivalence: Equivalence, give_up: int) -> RunningVote:
    """Return a vote without samples."""
    return RunningVote(request, draw, AnswerClasses(for_question(equivalence, request.question)), give_up)


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
