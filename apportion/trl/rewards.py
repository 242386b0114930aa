"""From TRL's reward functions to rollouts with verdicts and rewards, and the completions that have none."""

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from apportion.predictors.saved import SavedValues
from apportion.scheduler.outcomes import are_verdicts
from apportion.trl.advantages import weighted_rewards, without_failures
from apportion.trl.failures import RewardsFailedError
from apportion.trl.reading import RewardReader
from apportion.trl.replaced import replaced
from apportion.trl.settings import TRLAllocation
from apportion.types import Rollout

logger = logging.getLogger(__name__)

WINDOW = 256
"""The number of latest completions over which the share of failures is bounded."""
LEAST = 32
"""Least number of failures that can end a run, so that a few in its first step do not."""


@dataclass
class RewardVerdicts:
    """How the scores [N, F] of a run's completions by its reward functions ``names`` are read, and which have failed.

    A failed completion has no reward, or no verdict where one is needed. ``components`` returns what the estimator
    compares [N, C] of scores [N, F] and the functions' ``weights`` [F]; C is 0 if it compares their weighted sums, the
    default.
    """

    allocation: TRLAllocation
    names: Sequence[str]
    weights: Tensor
    components: Callable[[Tensor, Tensor], Tensor] = lambda scores, _: scores[:, :0]
    number: int = 0
    """The failures of the run so far."""
    _latest: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW), repr=False)
    _beside: set[int] = field(default_factory=set, repr=False)
    _apart: set[int] = field(default_factory=set, repr=False)
    _told: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        own, names = self.allocation, self.names
        judges = not own.label_free and own.needs.binary
        self.reader = RewardReader(names, own.failures, names.index(own.verdict or names[0]) if judges else None)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know: how many failed, and which functions returned, and judge other tasks."""
        return {
            "number": self.number,
            "returned": sorted(self.reader.returned),
            "beside": sorted(self._beside),
            "apart": sorted(self._apart),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the count of a run; what an older one did not save is empty. Raise ValueError for anything else."""
        empty = {"number": 0, "returned": [], "beside": [], "apart": []}
        saved = SavedValues({**empty, **state} if isinstance(state, Mapping) else state, "failures", empty)
        number, returned, functions = saved.count("number"), saved.texts("returned"), {*range(len(self.names))}
        self._beside, self._apart = (functions.intersection(saved.counts(key)) for key in ("beside", "apart"))
        self.number = number
        self.reader.returned.update(returned)

    def score(
        self,
        trainer: Any,
        calculate: Callable[..., Tensor],
        columns: Sequence[Sequence[Any]],
        functions: Collection[int],
        *,
        whole: bool = False,
    ) -> Tensor:
        """Return scores [N, F] of the rows of all ranks by ``calculate``, TRL's method. All ranks must call it.

        ``columns`` are what it takes: rows, prompts, completions and their ids, each [N] of this rank. The functions at
        the places ``functions`` are read by ``reader``, in a ``whole`` group or not. Models stay as they are. The
        others give 0.
        """
        called = list(trainer.reward_funcs)
        for i, own in enumerate(called):
            if i not in functions:
                called[i] = zeros
            elif not isinstance(own, nn.Module):
                called[i] = self.reader.reading(i, own, whole=whole)
        with replaced(trainer, reward_funcs=called):
            scores = calculate(*columns)
        wanted = (len(columns[0]) * trainer.accelerator.num_processes, len(self.names))
        if scores.shape != wanted:
            raise ValueError(
                "_calculate_rewards must return a row for each completion of all ranks and a column for each reward "
                f"function, {wanted}, got {tuple(scores.shape)}; gather the scores as TRL's method does"
            )
        return scores

    def judge(self, rollouts: Sequence[Rollout], prompts: Sequence[str]) -> list[Rollout | None]:
        """Return ``rollouts`` [N] with verdicts and rewards by the scores of their completions; None without a reward.

        ``prompts`` [N] are the texts of their prompts. Raises RewardsFailedError if too many have failed.
        """
        scores = scores_of(rollouts)
        failed = self.failed(scores, prompts)
        scores = without_failures(scores)
        rewards, compared = weighted_rewards(scores, self.weights), self.components(scores, self.weights)
        columns = zip(rollouts, failed, self._verdicts(scores), rewards.tolist(), compared.tolist(), strict=True)
        return [
            None if without else replace(rollout, correct=verdict, reward=reward, components=tuple(own))
            for rollout, without, verdict, reward, own in columns
        ]

    def failed(self, scores: Tensor, prompts: Sequence[str]) -> list[bool]:
        """Return whether completions with ``scores`` [N, F] have failed, and count them.

        Raises RewardsFailedError if too many have, with the first of the ``prompts`` [N].
        """
        failed, judged = scores.isnan().all(dim=1) | scores.isinf().any(dim=1), self._judged(scores)
        found: list[bool] = (failed if judged is None else failed | judged.isnan()).tolist()
        self._latest.extend(found)
        self.number += sum(found)
        recent, allowed = sum(self._latest), self.allocation.failures
        beyond_share = recent >= LEAST and recent > allowed.share * len(self._latest)
        if any(found) and (beyond_share or (allowed.number is not None and self.number > allowed.number)):
            first = found.index(True)
            because = ", ".join(
                f"{name} {'returned None' if math.isnan(score) else self.reader.problems.get(name, 'failed')}"
                for name, score in zip(self.names, scores[first].tolist(), strict=True)
                if not math.isfinite(score)
            )
            most = f"{allowed.share:.0%}" if beyond_share else allowed.number
            in_all = "" if beyond_share else f"{self.number} times in this run, "
            raise RewardsFailedError(
                f"completions must have rewards, got none for {recent} of the latest {len(self._latest)} (at most "
                f"{most} may have none); {because}, {in_all}for example for the prompt "
                f"{prompts[first]!r:.100}; correct it, or allow more with failed_rewards="
            )
        return found

    def _judged(self, scores: Tensor) -> Tensor | None:
        """Return the score [N] of the function that judges each row of ``scores`` [N, F]; None if nothing needs it.

        It is the judge, or the function of another task: one that has given None where the judge judged, and never a
        score beside it. Functions that score beside it, such as one of the format, judge nothing.
        """
        if (judge := self.reader.judge) is None:
            return None
        known = ~scores.isnan()
        for other in {*range(scores.size(1))} - {judge}:
            if (known[:, other] & known[:, judge]).any():
                self._beside.add(other)
            elif known[:, judge].any():
                self._apart.add(other)
        column = scores[:, judge].clone()
        for other in sorted(self._apart - self._beside):
            of_other = column.isnan() & known[:, other]
            column = column.where(~of_other, scores[:, other])
            if of_other.any() and not self._told:
                self._told = True
                logger.warning(
                    "%s gives None for some prompts; their completions are correct if %s is above 0",
                    self.names[judge],
                    self.names[other],
                )
        return column

    def _verdicts(self, scores: Tensor) -> list[bool | None]:
        """Return whether rollouts with ``scores`` [N, F] are correct; None if unknown.

        Without a named verdict a single reward function decides if its rewards are all 0 or 1, or -1 or 1. Raises
        ValueError if they are not and the allocator needs to know.
        """
        named, names = self.allocation.verdict, self.names
        column = self._judged(scores)
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


def scores_of(rollouts: Sequence[Rollout]) -> Tensor:
    """Return the scores [N, F] of ``rollouts`` [N] by the reward functions."""
    return torch.tensor([rollout.completion.scores for rollout in rollouts], dtype=torch.float32)


def zeros(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Return a reward of 0 for each completion."""
    return [0.0] * len(completions)
