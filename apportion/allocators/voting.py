"""Majority voting: samples of each prompt until a stopping rule is content with the votes, and no labels anywhere.

The rule (``apportion.stopping``) sees the answers in the order of sampling. A sample without an answer, and one that
failed to arrive, is paid for and does not vote. Prompts do not depend on each other, so each goes at its own pace.

Reference: Wang et al. 2022, arXiv 2203.11171 (self-consistency); the rules name their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Allocator
from apportion.stopping import Curtailed, PosteriorPredictive, Rule, Wave, check_max_samples, check_wave, coded, counted
from apportion.types import Batch, Counts, Plan


@dataclass(frozen=True)
class Voting(Allocator):
    """At most ``max_samples`` samples of each prompt, in waves, until ``rule`` stops.

    ``wave`` is how many are asked for at a time; "free" asks for as many as the rule takes at the least, so that fewer
    round trips cost no sample. ``curtail`` also stops where the leader can no longer be overtaken.

    >>> from apportion import Prompt, Rollout
    >>> voting = Voting(max_samples=8, wave=4)
    >>> batch = voting.start([Prompt("6 x 7?"), Prompt("17 x 23?")])
    >>> plan = voting.plan(batch)
    >>> batch = batch.add(plan, [[Rollout(answer="42")] * 4, [Rollout(answer=a) for a in ("391", "401", "391", "39")]])
    >>> plan.counts.tolist(), voting.plan(batch).counts.tolist()
    ([4, 4], [0, 4])
    """

    rule: Rule = field(default_factory=PosteriorPredictive)
    max_samples: int = 64
    wave: Wave = "free"
    curtail: bool = True

    name: ClassVar[str] = "voting"
    needs_labels: ClassVar[bool] = False
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_max_samples(self.max_samples)
        check_wave(self.wave)
        self.rule.check(self.max_samples)

    @property
    def stopping(self) -> Rule:
        """The rule that is asked: ``rule``, with curtailment if wanted."""
        return Curtailed(self.rule) if self.curtail else self.rule

    def plan(self, batch: Batch) -> Plan:
        """The next wave of each prompt that the rule has not stopped."""
        return Plan(np.array([self._more(self.votes(batch, q)[1]) for q in range(len(batch.prompts))], np.int64))

    def finished(self, batch: Batch, q: int) -> bool:
        """Whether prompt ``q`` needs no more samples after those so far."""
        return self._enough(self.votes(batch, q)[1])

    def winner(self, batch: Batch, q: int) -> str | None:
        """The answer that the rule chooses for prompt ``q`` after the samples so far; None where none was given."""
        answers, votes = self.votes(batch, q)
        if not answers:
            return None
        return answers[int(self.stopping.winner(votes, self.max_samples)[-1])]

    def votes(self, batch: Batch, q: int) -> tuple[list[str], Counts]:
        """The answers to prompt ``q`` in order of appearance, and their votes [T, K] after each sample asked for.

        Samples that failed come first, for which one it was a batch does not know: last, they would be in every newest
        window of a rule that looks at windows.
        """
        received = [rollout.answer for rollout in batch.rollouts[q]]
        answers, codes = coded([*[None] * (int(batch.asked[q]) - len(received)), *received])
        return answers, counted(codes, len(answers))

    def _more(self, votes: Counts) -> int:
        if self._enough(votes):
            return 0
        if self.wave == "free":
            return int(self.stopping.earliest(votes, self.max_samples))
        return min(self.wave, self.max_samples - len(votes))

    def _enough(self, votes: Counts) -> bool:
        if not 0 < len(votes) < self.max_samples:
            return len(votes) > 0
        return bool(self.stopping.stops_now(votes, self.max_samples))
