"""TTRL: a fixed number of votes for the pseudo-label. The first of them are trained on.

Reference: Zuo et al. 2025, "TTRL: Test-Time Reinforcement Learning", arXiv 2504.16084: 64 votes, 32 of them for the
update. The fixed-budget baseline of OptPO, arXiv 2512.02882.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from apportion.allocators.base import Size
from apportion.allocators.votes.base import Retain, SeparateVotes
from apportion.allocators.votes.rewards import PseudoReward
from apportion.stopping import Fixed, Rule, Wave


@dataclass(frozen=True)
class TTRL(SeparateVotes):
    """``max_samples`` votes on each prompt. The first ``min_samples`` of them enter the loss, or all.

    Args:
        max_samples: samples of every prompt, all of which vote.
        min_samples: the number retained with ``retain="first"``.
        retain: which rollouts enter the loss: the "first" ``min_samples``, or "all".
        reward: "agreement", "vote_share", or a function of (rollouts, pseudo-label).

    >>> from apportion import Prompt
    >>> ttrl = TTRL()
    >>> ttrl.plan(ttrl.start([Prompt("6 x 7?")])).counts.tolist()
    [64]
    """

    max_samples: int = 64
    min_samples: int = 32
    retain: Retain = "first"
    reward: str | PseudoReward = "agreement"

    name: ClassVar[str] = "ttrl"
    one_round: ClassVar[bool] = True
    adapts: ClassVar[bool] = False

    def size(self, prompts: int) -> Size:
        return replace(super().size(prompts), exact=True, rounds=1)

    @property
    def stopping(self) -> Rule:
        return Fixed()

    @property
    def wave(self) -> Wave:
        return "free"
