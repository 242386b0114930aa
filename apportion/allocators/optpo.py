"""OptPO: a vote that stops early gives the pseudo-label, and its rollouts are trained on.

Every prompt is sampled at least N and at most M times. From N on a Bayesian SPRT between the two leading answers says
when to stop (``apportion.stopping.optpo`` defines its symbols and lists its gaps). The pseudo-label a* is the leader at
the stop, the runner-up if the lower boundary was crossed, and the leader at M otherwise. Rollouts are rewarded by
I[a_i = a*] (Section 3.3), and N of them are retained for one step of PPO, GRPO, REINFORCE++ or SFT. N = 32,
M = 64, alpha = beta = .05, and a boundary exceeded 5 times are the paper's (Section 4.1).

Reference: Wang et al. 2025, "OptPO: Optimal Rollout Allocation for Test-time Policy Optimization", arXiv 2512.02882.

Note: the paper does not say which N rollouts are retained. We retain the first N, whose number depends on no outcome.
Note: its objective leaves the baseline b_i open. We take it over those N too. Votes stop while the leader is ahead, so
that the mean over all votes would be some .02 above the average reward of the first N.
Note: its SFT takes log pi(G_i | x_i) of one pseudo-label. An answer alone is not a completion: the estimator "sft"
takes the mean over the retained rollouts with that answer, which is the expectation over one drawn among them.
Note: the paper takes one step for each instance; here the trainer decides how many prompts share a step.
"""

from dataclasses import dataclass
from typing import ClassVar

from apportion.allocators.votes.base import Retain, SeparateVotes, Ties
from apportion.allocators.votes.rewards import PseudoReward
from apportion.stopping import Curtailed, Rule, Wave
from apportion.stopping.optpo import BayesianSPRT, CountFrom, LowAccuracy


@dataclass(frozen=True)
class OptPO(SeparateVotes):
    """Votes stopped early by a Bayesian SPRT, N retained rollouts, rewards by agreement; no labels.

    Args:
        min_samples: N, the fewest samples of a prompt, and the number retained.
        max_samples: M, the most.
        alpha: error budget of the test: the accepted probability of a wrong decision for the leader.
        beta: the same for a wrong decision against the leader.
        p0_factor: p_0 is estimated as this factor times the majority's share among the first N.
        exceedances: how often a boundary must be exceeded.
        choices: m if it is known, as for multiple choice; by default the number of distinct answers so far.
        low_accuracy: what to do if kappa <= 1: "continue", or "literal", which may choose the runner-up.
        count_from: where exceedances are counted: at all samples ("start", the paper's), or from N on ("min_samples").
        wave: samples requested at a time; "free" costs no more samples than one at a time.
        curtail: whether to stop also once the leader cannot be overtaken. The paper does not.
        retain: which rollouts enter the loss: the "first" N, or "all".
        reward: "agreement", "vote_share", or a function of (rollouts, pseudo-label).
        ties: "leader" is the paper's: the leader at M is the label, also in a tie. "drop" leaves such a prompt out,
            because the label of a tie is seldom right.

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
    count_from: CountFrom = "start"
    wave: Wave = "free"
    curtail: bool = False
    retain: Retain = "first"
    reward: str | PseudoReward = "agreement"
    ties: Ties = "drop"

    name: ClassVar[str] = "optpo"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stopping  # noqa: B018 - checks the settings of the test

    @property
    def stopping(self) -> Rule:
        """The test, with curtailment if ``curtail``."""
        test = BayesianSPRT(
            self.min_samples,
            self.alpha,
            self.beta,
            self.p0_factor,
            self.exceedances,
            self.choices,
            self.low_accuracy,
            self.count_from,
        )
        return Curtailed(test) if self.curtail else test
