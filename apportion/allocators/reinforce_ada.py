"""Reinforce-Ada: rounds of rollouts for each prompt until it shows enough signal, then a balanced subset of them.

Reference: W. Xiong, C. Ye, B. Liao, H. Dong, X. Xu, C. Monz, J. Bian, N. Jiang, T. Zhang, "Reinforce-Ada: An Adaptive
Sampling Framework for Reinforce-Style LLM Training", arXiv 2510.04996 (2025), Algorithm 1; since its third version the
model-free, sequential variant of the paper. Symbols of the paper used here: n rollouts of a prompt that enter the loss
(``keep``). The defaults are those of its published code: at most 4 rounds of 8, n = 4, the balanced exit.

The baseline, mean and deviation, is over all rollouts of the prompt, the loss over ``keep`` of them (``Group.keep``).
Note: graded rewards are not in the paper. Its exits and its subset count correct and wrong rollouts, so ``threshold``
must say which rewards are correct. The advantages stay those of the graded rewards.
Note: the first rollouts of each kind are kept, as in the published code.
Note: a prompt that never meets the exit keeps n of its rollouts. If all are wrong, or all right, it has no advantage.
Note: the counts and what is kept depend on outcomes of the same batch, which biases the gradient. With these defaults,
RLOO and the mean over what is kept, a prompt's expected gradient is 4.2 times the true one at p = .1 and .9, 1.5 times
at .3 and .7, 1.1 times at .5. See docs/allocators.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar, Literal, get_args

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.checks import check_choice, check_least
from apportion.types import Batch, Group, Mask, Needs, Plan, Rollout

Exit = Literal["positive", "balanced"]


def balanced_subset(verdicts: Sequence[bool | None], keep: int) -> Mask:
    """Return which [G] rollouts enter the loss: ``keep`` of them, or all that have a verdict if they are fewer.

    These are the first ``keep // 2`` correct ones and the first wrong ones; if one kind has too few, more of the other.

    >>> balanced_subset([False, False, False, True, True, True], keep=4).tolist()
    [True, True, False, True, True, False]
    >>> balanced_subset([True, True, False, True, True], keep=4).tolist()
    [True, True, True, True, False]
    """
    correct = np.array([verdict is True for verdict in verdicts], bool)
    wrong = np.array([verdict is False for verdict in verdicts], bool)
    right = min(int(correct.sum()), max(keep // 2, keep - int(wrong.sum())))
    return (correct & (correct.cumsum() <= right)) | (wrong & (wrong.cumsum() <= keep - right))


@dataclass(frozen=True, kw_only=True)
class ReinforceAda(Allocator):
    """Rounds of rollouts until a prompt meets the exit or the rounds are used up.

    It needs binary rewards, or graded ones and a ``threshold``.

    Args:
        exit: "positive" stops a prompt at its first correct rollout; "balanced" at ``keep // 2`` correct ones and as
            many wrong ones as make up ``keep``.
        rollouts_per_round: requested in a round, for every prompt that has not stopped.
        rounds: the most rounds of a prompt.
        keep: n, the rollouts of a prompt that enter the loss, at least 2. The baseline is over all of its rollouts.
        down_sample: if False, all rollouts of a prompt enter the loss, and ``keep`` only decides the exit. With the
            estimator "sequential" and weights by rollout the gradient is then unbiased; see docs/allocators.md.
        threshold: rollouts with a reward above it are correct, and the others wrong; by default verdicts say so.

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
    threshold: float | None = None

    name: ClassVar[str] = "reinforce_ada"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("exit", self.exit, get_args(Exit), '"balanced" is the published setting')
        check_least(self, "4 rounds of 8 are the published setting", rollouts_per_round=1, rounds=1)
        most = self.rollouts_per_round * self.rounds
        if not 2 <= self.keep <= most:
            raise ValueError(
                f"keep must be between 2, one of each kind, and the {most} rollouts that a prompt can have, got "
                f"{self.keep}; change it or the rounds"
            )
        if self.threshold is not None and not isfinite(self.threshold):
            raise ValueError(
                f"threshold must be finite for reinforce_ada, got {self.threshold}; rewards above it are correct"
            )

    @property
    def needs(self) -> Needs:
        return Needs(binary=self.threshold is None)

    def size(self, prompts: int) -> Size:
        asked = prompts * self.rounds * self.rollouts_per_round
        kept, least = prompts * self.keep if self.down_sample else asked, prompts * self.rollouts_per_round
        return Size(asked, kept, least=least, rounds=self.rounds)

    def exited(self, batch: Batch) -> Mask:
        """Return which prompts [P] have shown enough signal."""
        verdicts = [self._verdicts(rollouts) for rollouts in batch.rollouts]
        correct, wrong = (np.array([own.count(kind) for own in verdicts], np.int64) for kind in (True, False))
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
        return [replace(group, keep=balanced_subset(self._verdicts(group.rollouts), self.keep)) for group in groups]

    def metrics(self, batch: Batch) -> dict[str, float]:
        return {"exited": float(self.exited(batch).sum())}

    def _verdicts(self, rollouts: Sequence[Rollout]) -> list[bool | None]:
        """Return whether each of ``rollouts`` is correct; None if it was not scored."""
        if self.threshold is None:
            return [rollout.correct for rollout in rollouts]
        return [None if rollout.reward is None else rollout.reward > self.threshold for rollout in rollouts]
