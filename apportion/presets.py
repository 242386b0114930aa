"""Methods that are more than a counting rule, as their papers combine them: prompts, counts, baseline and estimator.

from apportion.presets import spo
from apportion.trl import AllocatedGRPOTrainer

trainer = AllocatedGRPOTrainer(model, reward_funcs, args, train_dataset, **spo().arguments())
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from apportion.allocators import DAPO, VIP, Allocator, Uniform
from apportion.allocators.neyman import NeymanEstimator
from apportion.baselines import SPO, Baseline, Tracked
from apportion.predictors import GaussianProcess
from apportion.selection import MoPPS, Selector, SPOWeights


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The decisions of a method. None leaves a decision to the trainer.

    Args:
        allocator: how many rollouts each prompt gets.
        estimator: the name of the advantage estimator.
        baseline: what the estimator subtracts.
        selection: which prompts get rollouts.
    """

    allocator: Allocator
    estimator: str | None = None
    baseline: Baseline | None = None
    selection: Selector | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the decisions that are made, by name, as the trainers for TRL take them.

        >>> sorted(vip_as_printed().arguments())
        ['allocator', 'estimator']
        """
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


def vip_as_printed(estimator: NeymanEstimator = "rloo", rollouts_per_prompt: float | None = None) -> Preset:
    """Return VIP (arXiv 2602.01601) with the Gaussian process of the paper, for "rloo" or "dr_grpo".

    Note: along a recorded run this process raises RLOO's variance at the first two visits of each prompt
    (benchmarks/results/real_run.md). ``VIP()`` has a belief that does not.
    """
    if estimator not in ("rloo", "dr_grpo"):
        raise ValueError(
            f"estimator must be rloo or dr_grpo for vip, got {estimator!r}; its paper has no other formula"
        )
    allocator = VIP(estimator=estimator, rollouts_per_prompt=rollouts_per_prompt, predictor=GaussianProcess())
    return Preset(allocator=allocator, estimator=estimator)


def spo(rates: Mapping[str, float] | None = None, *, rho: float = 0.875) -> Preset:
    """Return SPO (arXiv 2509.13232): single rollouts, a tracked baseline, advantages normalised over the batch.

    Prompts are drawn by sqrt(v (1 - v)) + .05, where v is the tracked baseline. ``rates`` are known
    success rates by prompt id, such as those of 8 rollouts of the base model; without them every prompt starts at 1/2.

    Note: the paper's rho follows the divergence of the policy. Here it is constant.
    Note: ``batch_optimal`` or ``Optimal()`` in place of this baseline have less variance on a real language model
    (benchmarks/results/baselines.md).
    """
    return Preset(
        allocator=Uniform(rollouts_per_prompt=1),
        estimator="spo",
        baseline=SPO(rho=rho, rates=rates),
        selection=SPOWeights(predictor=Tracked(rho=rho, rates=rates)),
    )


def mopps_with_refill(*, target: float = 0.5, max_draws: int = 10) -> Preset:
    """Return MoPPS's Thompson choice of prompts, and DAPO's fresh prompts for groups that turn out all right or wrong.

    The choice is made again for every refill, without the prompts that the batch holds. On a recorded run .957 of the
    chosen groups are mixed, for .515 of shuffled ones (benchmarks/results/selection.md). So a batch of B mixed groups
    takes about B / .957 groups in place of B / .515.

    Note: in a public comparison of seven arms on a 0.6B model (marin-community/marin, issue 8765, without seeds) the
    choice alone scored .350, neither .362, refill alone .414, and both .434 on MATH500. On their 67B model both lost to
    neither (.166 to .289).
    """
    return Preset(allocator=DAPO(max_draws=max_draws), selection=MoPPS(target=target))
