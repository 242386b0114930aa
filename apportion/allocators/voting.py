"""Majority voting under any stopping rule of ``apportion.stopping``, or your own.

Reference: Wang et al. 2022, arXiv 2203.11171 (self-consistency); the rules name their own.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from apportion.allocators.votes.base import Retain, SeparateVotes
from apportion.allocators.votes.rewards import PseudoReward
from apportion.stopping import USUAL_RULE, Curtailed, Rule, Wave, make_rule


@dataclass(frozen=True)
class Voting(SeparateVotes):
    """Majority voting: at most ``max_samples`` samples of each prompt, until ``rule`` stops.

    Args:
        rule: when to stop.
        max_samples: most samples of a prompt.
        min_samples: fewest samples of a prompt.
        wave: samples requested at a time. "free" requests the minimum before the rule can stop, which saves round
            trips and costs no sample.
        curtail: also stop once the leader cannot be overtaken.
        retain: whether the first ``min_samples`` samples enter the loss, or all.
        reward: "agreement" with the pseudo-label, "vote_share", or a function.

    >>> from apportion import Prompt, Rollout
    >>> voting = Voting(max_samples=8, wave=4)
    >>> batch = voting.start([Prompt("6 x 7?"), Prompt("17 x 23?")])
    >>> plan = voting.plan(batch)
    >>> batch = batch.add(plan, [[Rollout(answer="42")] * 4, [Rollout(answer=a) for a in ("391", "401", "391", "39")]])
    >>> plan.counts.tolist(), voting.plan(batch).counts.tolist()
    ([4, 4], [0, 4])
    """

    rule: Rule = field(default_factory=lambda: make_rule(USUAL_RULE))
    max_samples: int = 64
    min_samples: int = 1
    wave: Wave = "free"
    curtail: bool = True
    retain: Retain = "all"
    reward: str | PseudoReward = "agreement"

    name: ClassVar[str] = "voting"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rule.check(self.max_samples)

    @property
    def stopping(self) -> Rule:
        """``rule``, with curtailment if ``curtail``."""
        return Curtailed(self.rule) if self.curtail else self.rule
