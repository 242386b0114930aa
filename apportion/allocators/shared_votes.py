"""Votes under one budget for the whole batch: samples that easy prompts save go to harder ones.

Every prompt is sampled N = ``min_samples`` times. The rest of the budget is given out in rounds, to prompts where more
votes are expected to correct the most pseudo-labels. After v_1 votes for the leader and v_2 for the runner-up, the
belief about the leader's share q of the votes of both is Beta(v_1 + 1, v_2 + 1), so that its label is wrong with
probability P(q < 1/2). A further vote helps only if it breaks a tie: otherwise the label stays, or becomes one of two
that are equally likely. So m more votes are expected to lower the error by

    V(m) = sum of C(g + 2j, j) / (B(v_1 + 1, v_2 + 1) (v_1 + j + 1) 4^(v_1 + j + 1)) over j >= 0 with g + 2j < m,

where g = v_1 - v_2 and B is the Beta function: each term is the probability of a tie after g + 2j more votes, times
what breaking it is worth. Over all j they sum to P(q < 1/2). V is not concave, because up to g votes gain nothing.
A prompt's next samples are therefore worth the largest V(m) / m, the gain per vote of the m votes that are best bought
together, and later ones the slope of V's upper concave envelope.

Each round plans to spend the whole remaining budget on the votes that are worth the most, and carries out a part of the
plan: with four rounds to come, a prompt gets a quarter of its votes, rounded up, while the round's quarter of the
budget lasts. Then votes are counted again, and samples saved on decided votes go to the other prompts.

Reference: ours; that saved samples could go to harder prompts is OptPO's remark (Wang et al. 2025, arXiv 2512.02882,
Section 3.2). V(m) / m is the KG(*) policy of Frazier and Powell 2010 ("Paradoxes in Learning and the Marginal Value of
Information", Decision Analysis 7); Chen, Lin and Zhou 2015 (arXiv 1403.3080) buy labels of a crowd under a budget, one
at a time.

Notes:

- All further votes are assumed to go to the two leading answers. A third answer that catches up counts from the next
  round on.
- Samples are assumed to hold an answer as often as the prompt's samples so far; if none did, no more are bought.
- m is at most what remains of ``max_samples``, so that a leader that cannot be overtaken gets no more samples.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from apportion.allocators.base import Size
from apportion.allocators.votes.base import ConsensusAllocator, Retain
from apportion.allocators.votes.rewards import PseudoReward
from apportion.checks import check_least, total_of
from apportion.stopping import AdaptiveConsistencyBeta, Rule
from apportion.types import Batch, Counts, Floats, Mask, Plan


@dataclass(frozen=True)
class SharedVotes(ConsensusAllocator):
    """Votes under one budget for all prompts of a batch, given to those where they are expected to help most.

    Every requested sample counts. The whole budget is spent, unless every prompt is at ``max_samples``, without an
    answer, or has a leader that cannot be overtaken.

    Args:
        samples_per_prompt: budget per prompt, on average.
        min_samples: N, the fewest samples of a prompt, and the number retained.
        max_samples: the most samples of a prompt.
        rounds: the number of rounds that share the rest of the budget equally.
        confidence: the probability with which the leader must beat the runner-up to be reported as decided.
        retain: which rollouts enter the loss: the "first" N, or "all".
        reward: "agreement", "vote_share", or a function of (rollouts, pseudo-label).

    >>> from apportion import Prompt, Rollout, collect
    >>> answers = {"6 x 7?": "42 42 42 42 42 42", "17 x 23?": "391 401 391 401 391 401 391 391 391 391"}
    >>> replay = {text: iter(answer.split()) for text, answer in answers.items()}
    >>> def sample(prompts, counts):
    ...     return [[Rollout(answer=next(replay[p.text])) for _ in range(n)] for p, n in zip(prompts, counts)]
    >>> shared = SharedVotes(samples_per_prompt=6, min_samples=4)
    >>> batch = collect(shared, [Prompt(text) for text in answers], sample)
    >>> batch.asked.tolist(), [label.answer for label in shared.labels(batch)]
    ([4, 8], ['42', '391'])
    """

    samples_per_prompt: float = 32
    min_samples: int = 16
    max_samples: int = 256
    rounds: int = 8
    confidence: float = 0.95
    retain: Retain = "first"
    reward: str | PseudoReward = "agreement"

    name: ClassVar[str] = "shared_votes"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stopping  # noqa: B018 - checks the confidence
        if not self.min_samples <= self.samples_per_prompt <= self.max_samples:
            raise ValueError(
                f"samples_per_prompt must be between {self.min_samples} and {self.max_samples}, the fewest and the "
                f"most of a prompt, got {self.samples_per_prompt}; change it or the bounds"
            )
        check_least(self, "8 waste little", rounds=1)

    @property
    def stopping(self) -> Rule:
        """The rule that tells decided votes from those that the budget ended. It has the same belief as the plan."""
        return AdaptiveConsistencyBeta(self.confidence)

    def plan(self, batch: Batch) -> Plan:
        """Return the rest of the first N samples, then this round's part of the best use of the remaining budget."""
        missing = np.maximum(self.min_samples - batch.asked, 0)
        to_come = self.rounds + 1 - batch.round
        if missing.any() or to_come < 1:
            return Plan(missing)
        left = max(0, self._budget(len(batch.prompts)) - int(batch.asked.sum()))
        gains = self._gains(batch)
        parts = -(-take_largest(gains, left) // to_come)
        now = np.arange(gains.shape[1]) < parts[:, None]
        return Plan(take_largest(np.where(now, gains, 0.0), -(-left // to_come)))

    def final(self, batch: Batch, plan: Plan) -> Mask:
        """Return all prompts in the last round.

        Before it, return those that have M votes, or that no further vote can help.
        """
        counts = batch.asked + plan.counts
        if batch.round >= self.rounds or counts.sum() >= self._budget(len(batch.prompts)):
            return np.ones(len(batch.prompts), bool)
        full: Mask = counts >= self.max_samples
        if not batch.round:
            return full
        return full | ((plan.counts == 0) & ~self._gains(batch).any(axis=1))

    def size(self, prompts: int) -> Size:
        return replace(self._size_of(prompts, self._budget(prompts)), rounds=self.rounds + 1)

    def _budget(self, prompts: int) -> int:
        return total_of(self.samples_per_prompt, prompts)

    def _gains(self, batch: Batch) -> Floats:
        """Return the worth of each further sample of each prompt, [P, W]; 0 for those that it may not have."""
        ranked = [[votes for _, votes in counter.most_common(2)] for counter in batch.votes]
        first, second = np.array([[*votes, 0, 0][:2] for votes in ranked], np.int64).reshape(-1, 2).T
        voted = np.array([counter.total() for counter in batch.votes]) / np.maximum(batch.asked, 1)
        left = self.max_samples - batch.asked
        gains = votes_worth(first, second, left)
        sample = np.arange(gains.shape[1])
        reached = (sample * voted[:, None]).astype(np.int64)
        spread = np.take_along_axis(gains, reached, axis=1) * voted[:, None]
        return np.where(sample < left[:, None], spread, 0.0)


def error_removed(first: Counts, second: Counts, votes: int) -> Floats:
    """Return V(m), [P, ``votes`` + 1]: m = 0 to ``votes`` more votes after ``first`` [P] >= ``second`` [P].

    >>> error_removed(np.array([1, 0]), np.array([1, 0]), 3).tolist()
    [[0.0, 0.1875, 0.1875, 0.25], [0.0, 0.25, 0.25, 0.3125]]
    """
    m, gap = np.arange(votes), (first - second)[:, None]
    tied = (m >= gap) & ((m - gap) % 2 == 0)
    j = np.where(tied, (m - gap) // 2, 0)
    level = first[:, None] + j + 1
    numbers = np.arange(int((first + second).max(initial=0)) + votes + 2)
    table = np.log(np.maximum(numbers, 1)).cumsum()  # log 0!, log 1!, ...
    log_beta = table[first] + table[second] - table[first + second + 1]
    log = table[m] - table[j] - table[m - j] - log_beta[:, None] - np.log(level) - level * np.log(4)
    steps = np.where(tied, np.exp(log), 0.0)
    return np.concatenate([np.zeros((len(first), 1)), steps.cumsum(axis=1)], axis=1)


def votes_worth(first: Counts, second: Counts, left: Counts) -> Floats:
    """Return the worth of each further vote, [P, W], W the largest ``left`` [P]: slopes of V's envelope up to ``left``.

    They never increase along W, and are 0 beyond ``left`` and if no number of votes can help. The terms of V rise to
    the best m and then fall, so that beyond it the envelope goes from one term to the next, two votes later.

    >>> votes_worth(np.array([2]), np.array([0]), np.array([6])).round(4).tolist()
    [[0.0055, 0.0055, 0.0055, 0.0055, 0.0055, 0.0]]
    """
    votes = np.arange(1, int(left.max(initial=0)) + 1)
    allowed = votes <= left[:, None]
    removed = error_removed(first, second, len(votes))
    rate = np.where(allowed, removed[:, 1:] / votes, 0.0)
    steps = np.where(allowed, np.diff(removed), 0.0)
    halves = (steps + np.pad(steps, ((0, 0), (0, 1)))[:, 1:]) / 2
    best = rate.max(axis=1, initial=0.0, keepdims=True)
    together = (rate == best)[:, ::-1].cumsum(axis=1)[:, ::-1] > 0
    return np.where(together & (best > 0), best, halves)


def take_largest(gains: Floats, budget: int) -> Counts:
    """Return how many of the ``budget`` largest entries above 0 are in each row [P] of ``gains`` [P, W].

    Equal entries are taken row by row, so that votes that are best bought together are not split if avoidable.

    >>> take_largest(np.array([[0.2, 0.2], [0.3, 0.2], [0.1, 0.0]]), 3).tolist()
    [2, 1, 0]
    """
    order = np.argsort(-gains, axis=None, kind="stable")[:budget]
    bought = order[gains.ravel()[order] > 0]
    return np.bincount(bought // max(gains.shape[1], 1), minlength=len(gains))
