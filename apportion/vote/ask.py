"""One question, from the first sample to the winner: ask for a wave, count the samples, stop when the rule says so.

The rule is applied after each sample, in the order of the sample numbers and not of arrival. Short completions arrive
first, so a vote in the order of arrival would favour their answers. Samples that are still in flight when the rule
stops are cancelled. The size of a wave therefore changes the time and the number of cancelled samples, not the answer.
"""

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apportion.allocators import Voting
from apportion.answers.equivalence import AnswerClasses, Equivalence
from apportion.answers.extraction import extract
from apportion.endpoint import Client, Completion
from apportion.questions import Question, fill_template
from apportion.stopping import Curtailment, PosteriorPredictive, leader
from apportion.types import Batch, Plan, Prompt, Rollout, prompt_id
from apportion.vote.ballot import Ballot, Stopped, total
from apportion.vote.setup import Setup

MAX_FAILURES = 8
"""Samples of one question that may fail in a row, each after its retries, before the question is left to another run.
Otherwise a server that is down would use up the budget."""


async def ask(
    question: Question,
    setup: Setup,
    client: Client,
    equivalence: Equivalence,
    on_sample: Callable[[Completion], None] = lambda completion: None,
) -> Ballot:
    """Return the ballot of ``question``. ``on_sample`` is called with each completion that is counted.

    The ballot is not ``finished`` if failures ended it: too many in a row, or at least one and no answer at all.
    """
    started = time.monotonic()
    voting, text = setup.voting, fill_template(setup.template, question)
    samples = _Samples(setup.extract, AnswerClasses(equivalence))
    batch = voting.start([Prompt(text, id=question.id)])
    plan, cancelled = voting.plan(batch), 0
    while plan and not samples.gave_up:
        wave, first = int(plan.counts[0]), int(batch.asked[0])
        before, rollouts = batch, []
        async with aclosing(client.sample(text, wave, start=first, key=question.id)) as completions:
            async for completion in completions:
                rollouts.append(await samples.add(completion))
                on_sample(completion)
                batch = before.add(Plan(np.array([len(samples.completions) - first])), [rollouts])
                if samples.gave_up or voting.finished(batch, 0):
                    break
        cancelled += wave - (len(samples.completions) - first)
        plan = voting.plan(batch)
    answer, correct = voting.winner(batch, 0), None
    if question.gold is not None:
        correct = answer is not None and await equivalence.find_equal(answer, [question.gold]) is not None
    failed = samples.gave_up or (samples.errors and answer is None)
    stopped: Stopped = "failures" if failed else "max_samples" if batch.asked[0] == voting.max_samples else "rule"
    return Ballot(
        id=question.id,
        question_hash=prompt_id(question.prompt),
        answer=answer,
        gold=question.gold,
        correct=correct,
        votes=dict(batch.votes[0]),
        samples=int(batch.asked[0]),
        failed=len(samples.errors),
        unparsed=samples.answers.count(None) - len(samples.errors),
        cancelled=cancelled,
        waves=batch.round,
        texts=len({completion.text for completion in samples.arrived}),
        stopped=stopped,
        prompt_length=max((c.prompt_tokens for c in samples.arrived if c.prompt_tokens is not None), default=None),
        prompt_tokens=total(c.prompt_tokens for c in samples.arrived),
        completion_tokens=total(c.tokens for c in samples.arrived),
        seconds=time.monotonic() - started,
        disagreement=_disagreement(voting, batch, answer),
        errors=tuple(dict.fromkeys(samples.errors)),
        completions=samples.records(),
    )


@dataclass
class _Samples:
    """The samples of one question, in order, and the classes of their answers."""

    extraction: str
    classes: AnswerClasses
    completions: list[Completion] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)

    async def add(self, completion: Completion) -> Rollout:
        """Add a sample and return its rollout, whose answer is in the words in which the answer first appeared.

        A failed sample is a rollout without an answer. Without it, later samples would move in a rule's windows.
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
    def gave_up(self) -> bool:
        """Whether the last ``MAX_FAILURES`` samples all failed."""
        last = self.completions[-MAX_FAILURES:]
        return len(last) == MAX_FAILURES and all(completion.text is None for completion in last)

    def records(self) -> tuple[dict[str, Any], ...]:
        """Return texts and answers in order, and the errors of failed samples."""
        return tuple(
            {"text": completion.text, "answer": answer, "finish_reason": completion.finish_reason}
            if completion.text is not None
            else {"error": completion.error}
            for completion, answer in zip(self.completions, self.answers, strict=True)
        )


def _disagreement(voting: Voting, batch: Batch, answer: str | None) -> float:
    """Return an upper bound on the probability that all ``max_samples`` samples would choose another answer."""
    answers, votes = voting.votes(batch, 0)
    if answers and answers[int(leader(votes[-1]))] != answer:
        return 1.0  # the bound is on the leader losing, and this rule chose the runner-up
    if Curtailment().stops_now(votes, voting.max_samples):
        return 0.0
    return min(1.0, float(PosteriorPredictive().risk(votes[-1:], batch.asked, voting.max_samples)[0]))
