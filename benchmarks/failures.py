"""Rollouts that fail: how many others are lost with them, and what the expected gradient is then.

Each driver's own loop gets groups in which some rollouts fail. Its estimate of the gradient is paired with RLOO's of
the same draws without failures. That one has expectation p (1 - p), if a policy with one parameter is right with
probability p, and the score of a rollout is r - p.

    python -m benchmarks.failures
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from apportion import Prompt, Rollout, Uniform
from apportion.advantages import rloo
from apportion.engines.contract import EngineGroups
from apportion.scheduler import Rows, Scheduler, stream_groups
from apportion.scheduler.decisions import TrainerAllocation
from apportion.types import Floats, Mask
from benchmarks.common import write
from benchmarks.failures_tinker import cookbook

SEED, SIZE, ATTEMPTS, GROUPS, UPDATES = 0, 8, 3, 16, 400
SUCCESS = (0.1, 0.5, 0.9)
DECISIONS = {"allocator": Uniform(SIZE), "estimator": "rloo"}
PROMPTS = [Prompt(str(q)) for q in range(4 * GROUPS)]


@dataclass(frozen=True)
class Draw:
    """A group: whether each attempt at its rollouts is ``right`` [G, A], and whether it ``failed`` [G, A].

    ``sampled`` completions are made for it, at the first attempts and at those that are made after a failure.
    """

    right: Floats
    failed: Mask
    sampled: int

    def reward(self, rollout, attempt):
        """Return the reward of an attempt; None if it fails."""
        return None if self.failed[rollout, attempt] else float(self.right[rollout, attempt])

    def rewards(self):
        """Return the reward of each rollout by its first attempt that does not fail; None if all do."""
        return [self.reward(i, attempt) for i, attempt in enumerate(np.argmin(self.failed, axis=1).tolist())]


@dataclass(frozen=True)
class Failures:
    """The probabilities that an attempt at a ``wrong`` and at a ``right`` completion fails, and what is done ``again``.

    "sample" makes a new completion, and "score" scores the same one anew.
    """

    wrong: float
    right: float
    again: Literal["sample", "score"] | None = None

    def draw(self, p, rng):
        """Return a group at the success rate ``p``."""
        attempts = ATTEMPTS if self.again else 1
        right = rng.random((SIZE, attempts)) < p
        if self.again == "score":
            right[:] = right[:, :1]
        failed = rng.random(right.shape) < np.where(right, self.right, self.wrong)
        more = np.logical_and.accumulate(failed, axis=1)[:, :-1].sum() if self.again == "sample" else 0
        return Draw(right.astype(np.float64), failed, SIZE + int(more))


CASES = {
    "5%, by chance": Failures(0.05, 0.05),
    "2% of the right, 8% of the wrong": Failures(0.08, 0.02),
    "these, sampled again": Failures(0.08, 0.02, "sample"),
    "these, scored again": Failures(0.08, 0.02, "score"),
}


async def discarding(failures, p, rng) -> AsyncIterator[tuple[list[Draw], Floats, Floats]]:
    """Yield updates by a driver that discards a group with a failure: their draws, rewards [N] and advantages [N]."""
    while True:
        draws = [failures.draw(p, rng) for _ in range(GROUPS)]
        whole = [found for draw in draws if None not in (found := draw.rewards())]
        rewards = np.array(whole, np.float64).ravel()
        yield draws, rewards, rloo(rewards, np.repeat(range(len(whole)), SIZE))


async def contract(failures, p, rng) -> AsyncIterator[tuple[list[Draw], Floats, Floats]]:
    """Yield updates by the contract of engines."""
    groups = EngineGroups(TrainerAllocation(**DECISIONS), PROMPTS)
    while True:
        draws, keys, rollouts = [], list[str](), list[Rollout | None]()
        for _ in range(GROUPS):
            opened, draw = groups.next(), failures.draw(p, rng)
            own = [groups.rollout(reward) for reward in draw.rewards()]
            groups.observe(opened.key, own)
            draws.append(draw)
            keys, rollouts = [*keys, *[opened.key] * SIZE], [*rollouts, *own]
        advantages = groups.advantages(keys, rollouts)
        arrived = np.array([rollout is not None for rollout in rollouts])
        yield draws, np.array([rollout.reward for rollout in rollouts if rollout]), advantages[arrived]


async def scheduler(failures, p, rng) -> AsyncIterator[tuple[list[Draw], Floats, Floats]]:
    """Yield updates by ``stream_groups``, which makes the further attempts itself."""
    draws = dict[str, tuple[int, Draw]]()

    async def sample(ticket):
        if draws.get(ticket.prompt.id, (None,))[0] != ticket.unit:
            draws[ticket.prompt.id] = ticket.unit, failures.draw(p, rng)
        reward = draws[ticket.prompt.id][1].reward(ticket.rollout, ticket.attempt)
        return None if reward is None else Rollout(bool(reward))

    attempts = ATTEMPTS if failures.again else 1
    stream = Scheduler(TrainerAllocation(**DECISIONS), PROMPTS, Rows(GROUPS * SIZE), attempts=attempts)
    async for update in stream_groups(stream, sample, slots=2 * SIZE):
        rewards = np.concatenate([group.rewards for group in update.groups])
        yield [draws[group.prompt.id][1] for group in update.groups], rewards, update.advantages


DRIVERS = {
    "a failure discards its group": (discarding, CASES),
    "an engine by the contract": (contract, CASES),
    "the scheduler's loop": (scheduler, CASES),
    "tinker-cookbook": (partial(cookbook, groups=GROUPS, size=SIZE), list(CASES)[:2]),
}


async def measure(driver, failures, p, updates=UPDATES, seed=SEED):
    """Return the shares of rollouts wasted, and the expected gradient over the true one with its 95% interval."""
    ratios, sampled, used, rng = [], 0, 0, np.random.default_rng(seed)
    async for draws, rewards, advantages in driver(failures, p, rng):
        first = np.concatenate([draw.right[:, 0] for draw in draws])
        without = rloo(first, np.repeat(range(len(draws)), SIZE))
        own = advantages @ (rewards - p) / max(1, len(rewards))
        ratios.append(1 + (own - without @ (first - p) / len(first)) / (p * (1 - p)))
        sampled, used = sampled + sum(draw.sampled for draw in draws), used + len(rewards)
        if len(ratios) == updates:
            break
    return 1 - used / sampled, float(np.mean(ratios)), 1.96 * float(np.std(ratios)) / updates**0.5


def main():
    """Write the table."""
    logging.disable(logging.WARNING)  # one for each failure
    rows = []
    for name, (driver, cases) in DRIVERS.items():
        for case in cases:
            found = [asyncio.run(measure(driver, CASES[case], p)) for p in SUCCESS]
            wasted = f"{np.mean([waste for waste, *_ in found]):.1%}"
            rows.append([name, case, wasted, *(f"{ratio:.3f} ± {half:.3f}" for _, ratio, half in found)])
    biased = [rate * (1 - rate) / (p * (1 - p)) for p in SUCCESS for rate in [0.98 * p / (0.98 * p + 0.92 * (1 - p))]]
    write(
        "failures",
        "Failed rollouts",
        ["driver", "rollouts that fail", "wasted", *(f"p = {p}" for p in SUCCESS)],
        rows,
        [
            f"Groups of {SIZE}. wasted: the share of sampled rollouts that are not trained on, at three success rates "
            "p. Then the expected gradient over that without failures: RLOO, one weight a prompt, with 95% intervals "
            f"({UPDATES} updates of {GROUPS} groups, paired with the same draws without failures).",
            "If failures depend on whether a completion is right, those that arrive have another success rate. So the "
            f"gradient is biased, in theory by {', '.join(f'{each:.3f}' for each in biased)}, in every driver. "
            f"Sampling again, up to {ATTEMPTS} attempts, fills the group and keeps the bias, because it accepts what "
            "does not fail. Scoring the same completion again removes it.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
