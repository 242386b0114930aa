"""Methods that are more than a counting rule, as their papers combine them: prompts, counts, baseline and estimator.

from apportion.presets import fixed_baseline
from apportion.trl import AllocatedGRPOTrainer

trainer = AllocatedGRPOTrainer(model, reward_funcs, args, train_dataset, **fixed_baseline().arguments())

Or by its name, also in TOML, in verl and in the lab: ``AllocatedGRPOTrainer(..., preset="fixed_baseline")``.

``ADVICE`` says what to change first. docs/results.md has the measurements behind it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from apportion.allocators import AR3PO, DAPO, HORA, TTRL, VIP, Allocator, OptPO, Uniform
from apportion.allocators.vip import GroupEstimator
from apportion.baselines import SPO, Baseline, Optimal, Tracked
from apportion.checks import check_choice, make_named
from apportion.predictors import GaussianProcess
from apportion.selection import MoPPS, Selector, SPOWeights

ADVICE = (
    "First change the baseline. Second try smaller groups, with a learning rate of their own. Third, where RLOO or Dr. "
    "GRPO must stay, let VIP split the rollouts. Never choose prompts without watching held-out accuracy."
)
"""What to change, by the measured effects on learning: ``fixed_baseline``; then ``singles``; then ``VIP``; and
``mopps_with_refill`` or ``selection.Mixed`` with care, because they change the objective."""


RELEASED_BONUS = {"rloo": 0.0007, "dr_grpo": 0.0004}
"""The bonus gamma of VIP's released code."""


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


def singles() -> Preset:
    """Return single rollouts, and in place of a group's mean the baseline of least variance from each prompt's history.

    A batch has as many prompts as rows: in TRL whatever ``num_generations`` says, in verl with ``rollout.n=1`` and a
    ``train_batch_size`` that counts rollouts. In the lab 0.32 (0.29 to 0.37) of the rollouts of groups of 8 reached 80%
    success (docs/results.md). Without any baseline they were level there, and in a training four times as long their
    pass@32 fell.

    Note: with one optimal baseline for all prompts SmolLM2-135M learned no better than with groups of 8, and on one of
    two tasks worse. Tune the learning rate. Every row is trained on, so that an update takes longer, and fewer
    different right answers stay in use.
    """
    return Preset(allocator=Uniform(rollouts_per_prompt=1), estimator="reinforce", baseline=Optimal())


def fixed_baseline() -> Preset:
    """Return groups of the engine's size with the baseline of least variance from each prompt's history.

    In the lab 0.70 (0.65 to 0.74) of the rollouts of groups of 4 with their mean reached 80% success. SmolLM2-135M was
    level with one baseline for all prompts (docs/results.md).
    """
    return replace(singles(), allocator=Uniform())


def vip_as_printed(estimator: GroupEstimator = "rloo", rollouts_per_prompt: float | None = None) -> Preset:
    """Return VIP (arXiv 2602.01601) with the Gaussian process of the paper, for "rloo" or "dr_grpo".

    Note: along a recorded run the median as its width raises RLOO's variance at the first two visits of each prompt.
    With the released code's 0.4 the same process does not (benchmarks/results/real_run.md).
    """
    check_choice("estimator", estimator, get_args(GroupEstimator), "the paper of vip has no other formula")
    allocator = VIP(estimator=estimator, rollouts_per_prompt=rollouts_per_prompt, predictor=GaussianProcess())
    return Preset(allocator=allocator, estimator=estimator)


def vip_as_released(estimator: GroupEstimator = "rloo", rollouts_per_prompt: float | None = None) -> Preset:
    """Return VIP as earlier commits of the repository that its paper links have it, for "rloo" or "dr_grpo".

    The newest commit of HieuNT91/VIP (3604dd4) has no code. From 4a82f58 are a bandwidth of 0.4, a prior mean of -1, a
    noise of 1e-4 and rates clipped to 1e-6; from 0c17c79 4 to 32 rollouts a prompt and a bonus for hard prompts.

    Note: stored commits disagree. The bandwidth is 0.27 in f6a4aed and dc365c3. The trainer of 87bedf7 has a prior mean
    of -5 and allows 1 rollout, and keeps the mean between steps, as the paper and this preset do. By default the class
    resets it.
    Note: that code solves with SLSQP and rounds, and drops prompts below 4. Here the best whole numbers are found.
    Note: along a recorded run it raises RLOO's variance 1.37 to 1.74 times (benchmarks/results/real_run.md).
    """
    printed = vip_as_printed(estimator, rollouts_per_prompt)
    predictor = GaussianProcess(bandwidth=0.4, noise=1e-4, clip=1e-6, prior_mean=-1.0)
    allocator = VIP(
        estimator=estimator,
        rollouts_per_prompt=rollouts_per_prompt,
        low=4,
        high=32,
        bonus=RELEASED_BONUS[estimator],
        predictor=predictor,
    )
    return replace(printed, allocator=allocator)


def hora_as_printed(estimator: str = "grpo") -> Preset:
    """Return HORA (arXiv 2605.07114): 8 pre-rollouts of 16 on average, and a Beta(1, 1) prior, whatever the engine.

    The paper also trains by "rloo".
    """
    return Preset(allocator=HORA(pre_rollouts=8, rollouts_per_prompt=16), estimator=estimator)


def ar3po_as_printed() -> Preset:
    """Return AR3PO (arXiv 2509.25808): two stages of 4 responses, and reuse of earlier correct ones, under GRPO."""
    return Preset(allocator=AR3PO(stages=2, rollouts_per_stage=4), estimator="grpo")


def ttrl_as_printed() -> Preset:
    """Return TTRL, to which OptPO's paper (arXiv 2512.02882) compares: 64 votes, of which 32 are trained on."""
    return Preset(allocator=TTRL(max_samples=64, min_samples=32), estimator="grpo")


def optpo_as_printed(estimator: str = "grpo") -> Preset:
    """Return OptPO (arXiv 2512.02882): at least 32 and at most 64 votes, of which the first 32 are trained on.

    In a tie the leader is the label. The paper also trains by "reinforce_plus_plus", by "sft" and by PPO. Its other
    settings are the trainer's: a learning rate of 1e-6 (critic 1e-5, SFT 2e-5), a KL coefficient of 0.001, a
    temperature of 0.6 and top-p 0.95.
    """
    return Preset(allocator=OptPO(max_samples=64, min_samples=32, ties="leader"), estimator=estimator)


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


PRESETS: dict[str, Callable[..., Preset]] = {
    each.__name__: each
    for each in (
        singles,
        fixed_baseline,
        vip_as_printed,
        vip_as_released,
        hora_as_printed,
        ar3po_as_printed,
        ttrl_as_printed,
        optpo_as_printed,
        spo,
        mopps_with_refill,
    )
}
"""Every preset by name. All of their settings have defaults."""


def preset_of(name: str) -> Preset:
    """Return the preset with this name, with its defaults. Raises ValueError for an unknown name.

    >>> preset_of("hora_as_printed").allocator.name
    'hora'
    """
    preset: Preset = make_named("preset", name, PRESETS)
    return preset
