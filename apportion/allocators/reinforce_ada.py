"""Reinforce-Ada: rounds of rollouts for each prompt until it shows enough signal, then a balanced subset of them.

Reference: W. Xiong, C. Ye, B. Liao, H. Dong, X. Xu, C. Monz, J. Bian, N. Jiang, T. Zhang, "Reinforce-Ada: An Adaptive
Sampling Framework for Reinforce-Style LLM Training", arXiv 2510.04996 (2025), Algorithm 1; since its third version the
model-free, sequential variant of the paper. Symbols of the paper used here: n rollouts of a prompt that enter the loss
(``keep``). The defaults are those of its published code: at most 4 rounds of 8, n = 4, the balanced exit.

The baseline, mean and deviation, is over all rollouts of the prompt, the loss over ``keep`` of them (``Group.keep``).
Note: the first rollouts of each kind are kept, as in the published code.
Note: a prompt that never meets the exit keeps n of its rollouts. If all are wrong, or all right, it has no advantage.
Note: the counts and what is kept depend on outcomes of the same batch, which biases the gradient. With these defaults,
RLOO and the mean over what is kept, a prompt's expected gradient is 4.2 times the true one at p = .1 and .9, 1.5 times
at .3 and .7, 1.1 times at .5. See docs/bias.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.checks import check_numbers
from apportion.types import Batch, Group, Mask, Needs, Plan, Rollout

Exit = Literal["positive", "balanced"]


def balanced_subset(rollouts: Sequence[Rollout], keep: int) -> Mask:
    """Return which [G] of ``rollouts`` enter the loss: ``keep`` of them, or all verified ones if they are fewer.

    These are the first ``keep // 2`` correct ones and the first wrong ones; if one kind has too few, more of the other.

    >>> balanced_subset([Rollout(x) for x in (False, False, False, True, True, True)], keep=4).tolist()
    [True, True, False, True, True, False]
    >>> balanced_subset([Rollout(x) for x in (True, True, False, True, True)], keep=4).tolist()
    [True, True, True, True, False]
    """
    correct = np.array([rollout.correct is True for rollout in rollouts], bool)
    wrong = np.array([rollout.correct is False for rollout in rollouts], bool)
    right = min(int(correct.sum()), max(keep // 2, keep - int(wrong.sum())))
    return (correct & (correct.cumsum() <= right)) | (wrong & (wrong.cumsum() <= keep - right))


@dataclass(frozen=True, kw_only=True)
class ReinforceAda(Allocator):
    """Rounds of rollouts until a prompt meets the exit or the rounds are used up; needs binary rewards.

    Args:
        exit: "positive" stops a prompt at its first correct rollout; "balanced" at ``keep // 2`` correct ones and as
            many wrong ones as make up ``keep``.
        rollouts_per_round: requested in a round, for every prompt that has not stopped.
        rounds: the most rounds of a prompt.
        keep: n, the rollouts of a prompt that enter the loss, at least 2. The baseline is over all of its rollouts.
        down_sample: if False, all rollouts of a prompt enter the loss, and ``keep`` only decides the exit. With the
            estimator "sequential" and weights by rollout the gradient is then unbiased; see docs/bias.md.

    >>> from apportion import Prompt
    >>> allocator = ReinforceAda(rollouts_per_round=2, keep=2)
    >>> batch = allocator.start([Prompt("a"), Prompt("b")])
    >>> batch = batch.add(allocator.plan(batch), [[Rollout(True), Rollout(False)], [Rollout(False)] * 2])
    >>> allocator.plan(batch).counts.tolist()
    [0, 2]
    """

    exit: Exit = "balanced"
    rollouts_per_round: int = 8
    rounds: int = 4
    keep: int = 4
    down_sample: bool = True

    name: ClassVar[str] = "reinforce_ada"
    separable: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(binary=True)

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.exit not in get_args(Exit):
            raise ValueError(
                f"exit must be one of {', '.join(get_args(Exit))} for reinforce_ada, got {self.exit!r}; "
                '"balanced" is the published setting'
            )
        if self.rollouts_per_round < 1 or self.rounds < 1:
            raise ValueError(
                f"rollouts_per_round and rounds must be at least 1, got {self.rollouts_per_round} and {self.rounds}; "
                "8 and 4 are the published setting"
            )
        most = self.rollouts_per_round * self.rounds
        if not 2 <= self.keep <= most:
            raise ValueError(
                f"keep must be between 2, one of each kind, and the {most} rollouts that a prompt can have, got "
                f"{self.keep}; change it or the rounds"
            )

    def size(self, prompts: int) -> Size:
        asked = prompts * self.rounds * self.rollouts_per_round
        return Size(asked=asked, kept=prompts * self.keep if self.down_sample else asked)

    def exited(self, batch: Batch) -> Mask:
        """Return which prompts [P] have shown enough signal."""
        correct, wrong = batch.successes, batch.trials - batch.successes
        if self.exit == "positive":
            return correct >= 1
        return (correct >= self.keep // 2) & (wrong >= self.keep - self.keep // 2)

    def plan(self, batch: Batch) -> Plan:
        active = ~self.exited(batch) & (batch.asked < self.rounds * self.rollouts_per_round)
        rest_of_round = self.rollouts_per_round - batch.asked % self.rollouts_per_round
        return Plan(np.where(active, rest_of_round, 0))

    def groups(self, batch: Batch) -> list[Group]:
        groups = super().groups(batch)
        if not self.down_sample:
            return groups
        return [replace(group, keep=balanced_subset(group.rollouts, self.keep)) for group in groups]

    def metrics(self, batch: Batch) -> dict[str, float]:
        return {"exited": float(self.exited(batch).sum())}
