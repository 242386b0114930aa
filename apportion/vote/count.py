"""The votes on one question, counted sample by sample until the rule stops. Nothing is asked here.

The rule is applied after each sample, in the order of the sample numbers and not of arrival. Short completions arrive
first, so a vote in the order of arrival would favour their answers.
"""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from apportion.allocators import Voting
from apportion.answers import AnswerClasses, Equivalence, for_question, is_correct
from apportion.endpoint import EndpointError
from apportion.messages import prompt_text
from apportion.questions import Question
from apportion.stopping import Calibrated, Curtailment, PosteriorPredictive, leader
from apportion.types import Batch, Plan, Prompt, Rollout
from apportion.vote.ballot import Ballot, Stopped, total
from apportion.vote.sample import Sample

MAX_FAILURES = 8
"""Samples of one question that may fail in a row, each after its retries, before the question is left to another run.
Otherwise a server that is down would use up the budget."""


Weight = Literal["votes", "tokens"]
"""How much a vote counts when the winner is chosen."""


Draw = Callable[[Sequence[int]], AsyncGenerator[Sample, None]]
"""(numbers of samples) -> these samples, in order; fewer if there are no more."""


@dataclass
class Count:
    """The samples of one question so far. ``give_up`` samples without any answer end it, or ``max_failures`` in a row.

    With ``weight`` "tokens" the winner is the answer whose completions have the most tokens together. The rule that
    stops counts votes all the same (benchmarks/results/weighted_votes.md). ``add`` raises EndpointError if tokens are
    needed and unknown.
    """

    question: Question
    question_hash: str
    voting: Voting
    give_up: int
    equivalence: Equivalence
    weight: Weight = "votes"
    max_failures: int = MAX_FAILURES
    samples: list[Sample] = field(default_factory=list)
    cancelled: int = 0

    def __post_init__(self) -> None:
        self.equivalence = for_question(self.equivalence, prompt_text(self.question.prompt))
        self._classes = AnswerClasses(self.equivalence)
        self.batch = self._before = self.voting.start([Prompt("", id=self.question.id)])
        self._rollouts: list[Rollout] = []
        self._started = time.monotonic()

    def wanted(self) -> range:
        """Return the numbers of the samples that the rule needs next in any case, whatever their answers are."""
        counts = replace(self.voting, wave="free").plan(self.batch).counts
        return range(len(self.samples), len(self.samples) + int(counts[0]))

    async def run(self, draw: Draw, kept: Mapping[int, Sample]) -> bool:
        """Count samples in waves until the question ends. Return False if ``draw`` had too few of them.

        ``draw`` is not asked for those that are ``kept``, and it is closed if the question ends within a wave.
        """
        while not self._given_up and (plan := self.voting.plan(self.batch)):
            self._before, self._rollouts = self.batch, []
            wave = range(len(self.samples), len(self.samples) + int(plan.counts[0]))
            async with aclosing(draw([number for number in wave if number not in kept])) as drawn:
                try:
                    for number in wave:
                        sample = kept[number] if number in kept else await anext(drawn, None)
                        if sample is None:
                            return False
                        if await self.add(sample):
                            break
                finally:
                    self.cancelled += sum(number not in kept for number in range(len(self.samples), wave.stop))
        return True

    async def add(self, sample: Sample) -> bool:
        """Count the sample with the next number. Return whether the question has ended.

        A failed sample is no rollout: it casts no vote, and another sample takes its place.
        """
        if self.weight == "tokens" and sample.answer is not None and sample.tokens is None:
            raise EndpointError(
                f"tokens must be counted to weigh votes by them, got no usage for {self.question.id!r}; "
                'use weight = "votes", or a server that reports usage'
            )
        if sample.arrived:
            answer = None if sample.answer is None else await self._classes.join(sample.answer)
            self._rollouts.append(Rollout(answer=answer, tokens=sample.tokens))
            self.batch = self._before.add(Plan(np.array([len(self._rollouts)])), [self._rollouts])
        self.samples.append(sample)
        return self._given_up or self.voting.finished(self.batch, 0)

    @property
    def arrived(self) -> list[Sample]:
        """The samples that did not fail."""
        return [sample for sample in self.samples if sample.arrived]

    @property
    def refused(self) -> bool:
        """Whether the server refuses the question: no sample of it arrived, and one was refused under every seed."""
        return not self.arrived and any(sample.refused for sample in self.samples)

    @property
    def failing(self) -> bool:
        """Whether the last ``max_failures`` samples all failed, or more samples failed than a question may have."""
        last = self.samples[-self.max_failures :]
        in_a_row = len(last) == self.max_failures and not any(sample.arrived for sample in last)
        return in_a_row or len(self.samples) - len(self.arrived) > self.voting.max_samples

    @property
    def unanswered(self) -> bool:
        """Whether ``give_up`` whole samples arrived, or twice as many that were cut off, all without an answer."""
        if any(sample.answer is not None for sample in self.samples):
            return False
        cut_off = sum(sample.truncated for sample in self.arrived)
        return len(self.arrived) - cut_off >= self.give_up or cut_off >= 2 * self.give_up

    @property
    def _given_up(self) -> bool:
        return self.failing or self.unanswered or self.refused

    async def ballot(self) -> Ballot:
        """Return the result.

        It is not ``finished`` if failures ended it: too many in a row, or at least one and no answer at all.
        """
        arrived, errors = self.arrived, [sample.error for sample in self.samples if sample.error is not None]
        answer, gold, golds = self.winner, self.question.gold, self.question.golds
        return Ballot(
            id=self.question.id,
            question_hash=self.question_hash,
            answer=answer,
            gold=gold,
            aliases=golds[1:],
            correct=None if gold is None else await is_correct(answer, golds, self.equivalence),
            votes=dict(self.batch.votes[0]),
            samples=len(self.samples),
            failed=len(errors),
            unparsed=sum(sample.answer is None for sample in arrived),
            truncated=sum(sample.truncated for sample in arrived),
            finish_reasons=dict(Counter(sample.finish_reason or "none" for sample in arrived)),
            cancelled=self.cancelled,
            waves=self.batch.round,
            texts=len({sample.text_hash for sample in arrived}),
            repeats=repeats(arrived),
            stopped=self.stopped,
            prompt_length=max((each.prompt_tokens for each in arrived if each.prompt_tokens is not None), default=None),
            prompt_tokens=total(sample.prompt_tokens for sample in arrived),
            completion_tokens=total(sample.tokens for sample in arrived),
            seconds=time.monotonic() - self._started,
            disagreement=expected_disagreement(self.voting, self.batch, answer),
            errors=tuple(dict.fromkeys(errors)),
        )

    @property
    def winner(self) -> str | None:
        """The answer with the largest weight, among equals the one that appeared first; None without votes."""
        if self.weight == "votes":
            return self.voting.winner(self.batch, 0)
        totals: Counter[str] = Counter()
        for rollout in self.batch.rollouts[0]:
            if rollout.answer is not None:
                totals[rollout.answer] += rollout.tokens or 0
        return max(totals, key=totals.__getitem__, default=None)

    @property
    def stopped(self) -> Stopped:
        """Why the question ended. Failures alone, without any answer, leave it to another run."""
        if self.refused:
            return "refused"
        failed = len(self.samples) > len(self.arrived) and not self.batch.votes[0]
        if self.failing or (failed and not self.unanswered):
            return "failures"
        if len(self.arrived) == self.voting.max_samples:
            return "max_samples"
        return "unanswered" if self.unanswered else "rule"


def repeats(samples: Iterable[Sample]) -> bool | None:
    """Return whether each request for three of ``samples`` or more gave one text; None without such a request.

    The samples of a request have its seed.
    """
    texts: dict[int | None, list[str | None]] = {}
    for sample in samples:
        texts.setdefault(sample.seed, []).append(sample.text_hash)
    together = [len(set(each)) == 1 for seed, each in texts.items() if seed is not None and len(each) >= 3]
    return all(together) if together else None


def expected_disagreement(voting: Voting, batch: Batch, answer: str | None) -> float:
    """Return the probability that most of ``max_samples`` samples would have another answer.

    Under ``Calibrated`` it is on the scale of its eps, so that it means what was asked for. Under any other rule it is
    an upper bound. ``batch`` holds one question, whose ``answer`` was chosen. Without any answer, the share of samples
    that hold one has a uniform prior.
    """
    answers, votes = voting.votes(batch, 0)
    if not answers:
        return 1 - (len(votes) + 1) / (voting.max_samples + 1)
    if answers[int(leader(votes[-1]))] != answer:
        return 1.0  # the bound is on the leader losing, and another answer was chosen
    if Curtailment().stops_now(votes, voting.max_samples):
        return 0.0
    if isinstance(voting.rule, Calibrated):
        return float(voting.rule.expected(votes[-1:], batch.asked, voting.max_samples)[0])
    return min(1.0, float(PosteriorPredictive().risk(votes[-1:], batch.asked, voting.max_samples)[0]))
