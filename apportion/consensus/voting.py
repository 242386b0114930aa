"""Majority voting under any stopping rule: of ``apportion.stopping``, by name or your own.

Reference: Wang et al. 2022, arXiv 2203.11171 (self-consistency); the rules name their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from apportion.consensus.base import Retain
from apportion.consensus.rewards import PseudoReward
from apportion.consensus.separate_votes import SeparateVotes, with_curtailment
from apportion.stopping import PosteriorPredictive, Rule, Wave


@dataclass(frozen=True)
class Voting(SeparateVotes):
    """At most ``max_samples`` samples of each prompt, in waves, until ``rule`` stops.

    ``wave`` is how many are asked for at a time; "free" asks for as many as the rule takes at the least, so that fewer
    round trips cost no sample. ``curtail`` also stops where the leader can no longer be overtaken. At least
    ``min_samples`` are drawn; ``retain`` says whether the first so many enter the loss, or all. ``reward`` is
    "agreement" with the pseudo-label, "vote_share", or a function.

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
    min_samples: int = 1
    wave: Wave = "free"
    curtail: bool = True
    retain: Retain = "all"
    reward: str | PseudoReward = "agreement"

    name: ClassVar[str] = "voting"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rule, Rule):
            raise ValueError(f"rule must be a stopping rule, got {self.rule!r}; apportion.stopping.make_rule makes one")
        self.rule.check(self.max_samples)

    @property
    def stopping(self) -> Rule:
        """``rule``, with curtailment if wanted."""
        return with_curtailment(self.rule, self.curtail)
