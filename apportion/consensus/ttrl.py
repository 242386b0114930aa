"""TTRL: a fixed number of votes for the pseudo-label, of which the first few are trained on.

Reference: Zuo et al. 2025, "TTRL: Test-Time Reinforcement Learning", arXiv 2504.16084: 64 votes, 32 of them for the
update. The fixed-budget baseline of OptPO, arXiv 2512.02882.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from apportion.consensus.base import Retain
from apportion.consensus.rewards import PseudoReward
from apportion.consensus.separate_votes import SeparateVotes
from apportion.stopping import Fixed, Rule, Wave


@dataclass(frozen=True)
class TTRL(SeparateVotes):
    """``max_samples`` votes on each prompt; the first ``min_samples`` of them enter the loss, or all.

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

    @property
    def fixed_total(self) -> bool:
        return True

    @property
    def stopping(self) -> Rule:
        return Fixed()

    @property
    def wave(self) -> Wave:
        return "free"
