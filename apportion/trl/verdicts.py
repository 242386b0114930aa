"""From the scores of TRL's reward functions to rollouts with verdicts and rewards."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from apportion.scheduler.outcomes import are_verdicts
from apportion.trl.advantages import weighted_rewards, without_failures
from apportion.trl.failures import FailureCount
from apportion.trl.settings import TRLAllocation
from apportion.types import Rollout


@dataclass(frozen=True)
class Verdicts:
    """How scores are read: the ``weights`` [F] of the reward functions, and what counts as correct.

    ``failures`` counts completions without a reward over the whole run. ``components`` returns what the estimator
    compares [N, C] of scores [N, F] and weights [F]; C is 0 if it compares their weighted sums, the default.
    """

    allocation: TRLAllocation
    weights: torch.Tensor
    failures: FailureCount
    components: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda scores, _: scores[:, :0]

    def judge(self, rollouts: Sequence[Rollout], prompts: Sequence[str]) -> list[Rollout | None]:
        """Return ``rollouts`` [N] with verdicts and rewards by the scores of their completions; None without a reward.

        ``prompts`` [N] are the texts of their prompts.
        """
        scores = scores_of(rollouts)
        failed = self.failures.failed(scores).tolist()
        self.failures.add(failed, scores, prompts)
        scores = without_failures(scores)
        rewards, compared = weighted_rewards(scores, self.weights), self.components(scores, self.weights)
        columns = zip(rollouts, failed, self._verdicts(scores), rewards.tolist(), compared.tolist(), strict=True)
        return [
            None if without else replace(rollout, correct=verdict, reward=reward, components=tuple(own))
            for rollout, without, verdict, reward, own in columns
        ]

    def judge_in_round(self, rollouts: Sequence[Rollout], prompts: Sequence[str]) -> list[Rollout | None]:
        """Return ``rollouts`` with verdicts as far as they are known before groups are finished; None without one.

        Completions with a verdict are counted once more with their groups, where another function may fail.
        """
        columns = self.allocation.functions_of_rounds(self.failures.names)
        if not columns:
            return list(rollouts)
        scores = scores_of(rollouts)
        self.failures.add((~scores[:, columns[0]].isfinite()).tolist(), scores, prompts)
        pairs = zip(rollouts, self._verdicts(without_failures(scores)), strict=True)
        return [None if verdict is None else replace(rollout, correct=verdict) for rollout, verdict in pairs]

    def _verdicts(self, scores: torch.Tensor) -> list[bool | None]:
        """Return whether rollouts with ``scores`` [N, F] are correct; None if unknown.

        Without a named verdict a single reward function decides if its rewards are all 0 or 1, or -1 or 1. Raises
        ValueError if they are not and the allocator needs to know.
        """
        named, names = self.allocation.verdict, self.failures.names
        column = self.failures.judged(scores)
        if column is None:
            if named is None and len(names) > 1:
                return [None] * len(scores)
            column = scores[:, names.index(named or names[0])]
        values = {score for score in column.tolist() if not math.isnan(score)}
        if named is None and (not are_verdicts(values) or {0.0, -1.0} <= values):
            if self.allocation.needs.binary:
                graded = max(values - {0.0, 1.0}, key=lambda score: not are_verdicts([score]))
                raise ValueError(
                    f"rewards must be 0 or 1 for {self.allocation.counting}, which counts correct rollouts, got "
                    f"{graded}; set verdict={names[0]!r} if rewards above 0 are correct, or use an allocator or "
                    "predictor for graded rewards"
                )
            return [None] * len(scores)
        return [None if math.isnan(score) else score > 0 for score in column.tolist()]


def scores_of(rollouts: Sequence[Rollout]) -> torch.Tensor:
    """Return the scores [N, F] of ``rollouts`` [N] by the reward functions."""
    return torch.tensor([rollout.completion.scores for rollout in rollouts], dtype=torch.float32)
