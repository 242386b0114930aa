"""OptPO: the pseudo-label by a vote that stops early, the update on the rollouts that it took.

Every prompt is sampled at least N and at most M times; from N on a Bayesian SPRT between the two leading answers says
when the vote is decided (``apportion.stopping.optpo``, which has its symbols and its holes). The pseudo-label a* is the
leader at the stop, the runner-up where the lower boundary was crossed, and the leader at M otherwise; rollouts are
rewarded by I[a_i = a*] (Section 3.3), and N of them are retained for one step of PPO, GRPO, REINFORCE++ or SFT. N = 32,
M = 64, alpha = beta = .05, and a boundary exceeded 5 times are the paper's (Section 4.1).

Reference: Wang et al. 2025, "OptPO: Optimal Rollout Allocation for Test-time Policy Optimization", arXiv 2512.02882.

Note: the paper does not say which N rollouts are retained; here the first N, whose number depends on no outcome.
Note: its objective leaves the baseline b_i open. Here it is over those N too: the mean of all votes, which stop while
the leader is ahead, would be some .02 above what the first N get on average.
Note: its SFT takes log pi(G_i | x_i) of one pseudo-label. An answer alone is no completion: the estimator "sft" takes
the mean over the retained rollouts that give it, which is the expectation over one drawn among them.
Note: one step for each instance there; how many prompts share a step is the trainer's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from apportion import stopping
from apportion.consensus.base import Retain
from apportion.consensus.rewards import PseudoReward
from apportion.consensus.separate_votes import SeparateVotes, with_curtailment
from apportion.stopping import Rule, Wave
from apportion.stopping.optpo import LowAccuracy


@dataclass(frozen=True)
class OptPO(SeparateVotes):
    """Votes stopped early by a Bayesian SPRT, N retained rollouts, rewards by agreement; no labels.

    Args:
        min_samples: N, the fewest samples of a prompt, and what is retained.
        max_samples: M, the most.
        alpha, beta: the error budgets of the test.
        p0_factor: what the majority's share among the first N is multiplied with, to estimate p_0.
        exceedances: how often a boundary must be exceeded.
        choices: m where it is known, as for multiple choice; by default the distinct answers so far.
        low_accuracy: what kappa <= 1 does: "continue", or "literal", which may choose the runner-up.
        wave: samples asked for at a time; "free" costs no sample more than one at a time.
        curtail: stop also where the leader can no longer be overtaken. The paper does not.
        retain: which rollouts enter the loss: the "first" N, or "all".
        reward: "agreement", "vote_share", or a function of (rollouts, pseudo-label).

    >>> from apportion import Prompt, Rollout, collect
    >>> optpo = OptPO(min_samples=4, max_samples=16)
    >>> batch = collect(optpo, [Prompt("6 x 7?")], lambda prompts, counts: [[Rollout(answer="42")] * int(counts[0])])
    >>> int(batch.asked[0]), optpo.labels(batch)[0].answer, len(optpo.groups(batch)[0].rollouts)
    (12, '42', 4)
    """

    min_samples: int = 32
    max_samples: int = 64
    alpha: float = 0.05
    beta: float = 0.05
    p0_factor: float = 0.6
    exceedances: int = 5
    choices: int | None = None
    low_accuracy: LowAccuracy = "continue"
    wave: Wave = "free"
    curtail: bool = False
    retain: Retain = "first"
    reward: str | PseudoReward = "agreement"

    name: ClassVar[str] = "optpo"
    _test: Rule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        test = stopping.OptPO(
            self.min_samples,
            self.alpha,
            self.beta,
            self.p0_factor,
            self.exceedances,
            self.choices,
            self.low_accuracy,
        )
        object.__setattr__(self, "_test", with_curtailment(test, self.curtail))

    @property
    def stopping(self) -> Rule:
        """The test, with curtailment if wanted."""
        return self._test
