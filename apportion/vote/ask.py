"""One question, from the first sample to the winner: ask for a wave, count what comes, stop when the rule says so.

The rule is asked after each sample, in the order of the sample numbers and not of arrival: short completions arrive
first, and a vote among the first to arrive would lean towards their answers. What is still in flight when the rule is
content is cancelled. So the wave decides how soon an answer is there and how much is cancelled, not which it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apportion.consensus import Voting
from apportion.questions import Question, filled
from apportion.samplers import Client, Completion
from apportion.stopping import Curtailment, PosteriorPredictive, leader
from apportion.types import Batch, Plan, Prompt, Rollout, prompt_id
from apportion.verifiers.equivalence import Classes, Equivalence
from apportion.verifiers.extraction import extract
from apportion.vote.ballot import Ballot, Stopped, total
from apportion.vote.setup import Setup

GIVE_UP = 8
"""Samples of one question that fail in a row, each after its retries, before it is left to another run: to go on would
spend the budget on nothing and call the rest a vote."""


async def ask(
    question: Question,
    setup: Setup,
    client: Client,
    equivalence: Equivalence,
    seen: Callable[[Completion], None] = lambda completion: None,
) -> Ballot:
    """The ballot of ``question``; ``seen`` is called with each completion that is counted.

    It is not ``finished`` where failures ended it: too many in a row, or one at least and no answer at all.
    """
    started = time.monotonic()
    voting, text = setup.voting, filled(setup.template, question)
    samples = _Samples(setup.extract, Classes(equivalence))
    batch = voting.start([Prompt(text, id=question.id)])
    plan, cancelled = voting.plan(batch), 0
    while plan and not samples.away:
        wave, first = int(plan.counts[0]), int(batch.asked[0])
        before, rollouts = batch, []
        async with aclosing(client.sample(text, wave, start=first, key=question.id)) as completions:
            async for completion in completions:
                rollouts.append(await samples.take(completion))
                seen(completion)
                batch = before.add(Plan(np.array([len(samples.completions) - first])), [rollouts])
                if samples.away or voting.finished(batch, 0):
                    break
        cancelled += wave - (len(samples.completions) - first)
        plan = voting.plan(batch)
    answer = voting.winner(batch, 0)
    return Ballot(
        id=question.id,
        question_hash=prompt_id(question.prompt),
        answer=answer,
        gold=question.gold,
        correct=await _correct(answer, question.gold, equivalence),
        votes=dict(batch.votes[0]),
        samples=int(batch.asked[0]),
        failed=len(samples.errors),
        unparsed=samples.answers.count(None) - len(samples.errors),
        cancelled=cancelled,
        waves=batch.round,
        texts=len({completion.text for completion in samples.arrived}),
        stopped=_stopped(samples, answer, batch, voting),
        prompt_length=max((c.prompt_tokens for c in samples.arrived if c.prompt_tokens is not None), default=None),
        prompt_tokens=total(c.prompt_tokens for c in samples.arrived),
        completion_tokens=total(c.tokens for c in samples.arrived),
        seconds=time.monotonic() - started,
        disagreement=_disagreement(voting, batch, answer),
        errors=tuple(dict.fromkeys(samples.errors)),
        completions=samples.kept(),
    )


@dataclass
class _Samples:
    """What came of the samples of one question, in order, and the classes of their answers."""

    extraction: str
    classes: Classes
    completions: list[Completion] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)

    async def take(self, completion: Completion) -> Rollout:
        """One sample more: its rollout, whose answer is in the words first used for it.

        One that failed is a rollout without an answer: left out, it would move the later ones in a rule's windows.
        """
        self.completions.append(completion)
        answer = None if completion.text is None else extract(completion.text, self.extraction)
        self.answers.append(answer)
        if answer is None:
            return Rollout(tokens=completion.tokens)
        return Rollout(answer=await self.classes.join(answer), tokens=completion.tokens)

    @property
    def arrived(self) -> list[Completion]:
        return [completion for completion in self.completions if completion.text is not None]

    @property
    def errors(self) -> list[str]:
        return [completion.error or "no text" for completion in self.completions if completion.text is None]

    @property
    def away(self) -> bool:
        """Whether so many failed in a row that the server is away."""
        last = self.completions[-GIVE_UP:]
        return len(last) == GIVE_UP and all(completion.text is None for completion in last)

    def kept(self) -> tuple[dict[str, Any], ...]:
        """Texts and answers in order; the error where a sample failed."""
        return tuple(
            {"text": completion.text, "answer": answer, "finish_reason": completion.finish_reason}
            if completion.text is not None
            else {"error": completion.error}
            for completion, answer in zip(self.completions, self.answers, strict=True)
        )


def _stopped(samples: _Samples, answer: str | None, batch: Batch, voting: Voting) -> Stopped:
    if samples.away or (samples.errors and answer is None):
        return "failures"
    return "max_samples" if int(batch.asked[0]) == voting.max_samples else "rule"


async def _correct(answer: str | None, gold: str | None, equivalence: Equivalence) -> bool | None:
    """Whether ``answer`` means the same as ``gold``; no answer is a wrong one."""
    if answer is None or gold is None:
        return None if gold is None else False
    return await equivalence.place(answer, [gold]) is not None


def _disagreement(voting: Voting, batch: Batch, answer: str | None) -> float:
    """The probability, at most, that all ``max_samples`` samples would choose another answer."""
    answers, votes = voting.votes(batch, 0)
    if answers and answers[int(leader(votes[-1]))] != answer:
        return 1.0  # a rule may choose the runner-up; what is bounded is that the leader loses
    if Curtailment().stops_now(votes, voting.max_samples):
        return 0.0
    return min(1.0, float(PosteriorPredictive().risk(votes[-1:], batch.asked, voting.max_samples)[0]))
