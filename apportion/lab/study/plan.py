"""The plan of a study as lines of text: what it will do, how many rollouts it takes, and about how long."""

from apportion.allocators import Allocator
from apportion.allocators.votes import ConsensusAllocator
from apportion.lab.policy.recipes import is_trained
from apportion.lab.study.design import Study
from apportion.lab.training.pool import Pool
from apportion.lab.training.settings import Training
from apportion.lab.world.task import TASKS

CPU_SECONDS_PER_ROLLOUT = {"ledger": 0.7e-3, "forks": 4e-3}  # sampling and learning, with the held-out evaluations
CPU_SECONDS_PER_PROMPT = {"ledger": 2.2e-3, "forks": 5e-3}  # exact success of each prompt of each step
CPU_SECONDS_PER_BASE = 150.0
SECONDS_TO_START = 10.0
ROLLOUTS_PER_PROMPT = 8  # assumed if it is not known before


def plan_lines(study: Study, pool: Pool) -> list[str]:
    """Return what ``study`` will do. ``pool`` is the pool of its first seed."""
    training = study.training
    trained = is_trained(training.base)
    seconds = SECONDS_TO_START + (0.0 if trained else CPU_SECONDS_PER_BASE)
    of_runs = sum(_expected_seconds(study.training_of(arm), study.allocators[arm]) for arm, _ in study.runs)
    minutes = (seconds + of_runs / study.parallel) / 60
    return [
        f"study       {study.name}, under {study.directory}",
        f"allocators  {', '.join(study.allocators)} (compared with {study.baseline}, pairwise by seed)",
        f"runs        {len(study.runs)}: {len(study.allocators)} allocators x {len(study.seeds)} seeds, "
        f"{study.parallel} at a time",
        f"prompts     {_prompts(training, pool)}",
        *_length(study),
        f"base        {training.base}, {'cached' if trained else 'trained first, then cached'}",
        f"expected    about {max(1.0, minutes):.0f} min on an idle machine",
    ]


def rollout_bounds(training: Training, allocator: Allocator) -> tuple[int, int] | None:
    """Return the least and the most rollouts of a run; None if they are not known before."""
    if training.unit == "rollouts":
        return training.length, training.length
    if training.unit == "step" and isinstance(allocator, ConsensusAllocator):
        size = allocator.size(training.prompts_per_step)
        assert size.asked is not None
        least = size.asked if size.exact else training.prompts_per_step * allocator.min_samples
        return training.length * least, training.length * size.asked
    return None


def _prompts(training: Training, pool: Pool) -> str:
    drawn = f"{len(pool.problems)} for training" + (f" from {training.prompts}" if training.prompts else "")
    drawn += f", {training.prompts_per_step} a step; {len(pool.held_out)} held out"
    if training.labels == "gold":
        return drawn
    gold = f"gold of {len(pool.gold)} is for the report alone" if pool.gold else "no gold, so no accuracy in the report"
    return f"{drawn}; no labels; {gold}"


def _length(study: Study) -> list[str]:
    """Return the length of a run in its own unit, and in rollouts if they can be known."""
    training = study.training
    name = f"{training.unit.removesuffix('s')}s"
    lines = [] if training.unit == "rollouts" else [f"{name:11} {training.length:,} a run"]
    bounds = [rollout_bounds(study.training_of(arm), allocator) for arm, allocator in study.allocators.items()]
    if None in bounds:
        return lines
    least, most = zip(*filter(None, bounds), strict=True)
    low, high = sum(least) * len(study.seeds), sum(most) * len(study.seeds)
    if min(least) == max(most):
        return [*lines, f"rollouts    {low // len(study.runs):,} a run, {low:,} in all"]
    return [*lines, f"rollouts    at least {min(least):,} and at most {max(most):,} a run; {low:,} to {high:,} in all"]


def _expected_seconds(training: Training, allocator: Allocator) -> float:
    """Return about how many CPU seconds a run takes. The display estimates again during training."""
    drawn = training.prompts_per_step
    a_step = allocator.size(drawn).asked or drawn * ROLLOUTS_PER_PROMPT
    if bounds := rollout_bounds(training, allocator):
        rollouts = sum(bounds) / 2  # votes on the medium base come close to the middle
    elif training.unit == "tokens":  # a label and a digit for each operation, and the end
        rollouts = training.length / (sum(TASKS[training.task].operations) + 1)
    else:
        rollouts = training.length * a_step
    steps = training.length if training.unit == "step" else rollouts / a_step
    seconds: float = rollouts * CPU_SECONDS_PER_ROLLOUT[training.task]
    return seconds + steps * drawn * CPU_SECONDS_PER_PROMPT[training.task]
