"""Drive an allocator from your own asynchronous engine. This one answers sums and is often wrong."""

import asyncio
import random

from apportion import VIP, Prompt, Rollout, collect_async
from apportion.advantages import prompt_weights, rloo
from apportion.predictors import DiscountedCounts

RNG = random.Random(0)
PROMPTS = [Prompt(f"{a} + {b} =", data=(a, b)) for a, b in [(1, 2), (17, 25), (480, 396), (9_999, 8_765)]]


async def sample(prompt: Prompt, count: int) -> list[Rollout]:
    """Request ``count`` answers and verify them against the sum. One answer in twenty never arrives."""
    await asyncio.sleep(0.001)
    a, b = prompt.data
    slips = [RNG.random() < 0.2 * len(str(a)) for _ in range(count) if RNG.random() > 0.05]
    answers = [a + b + slip for slip in slips]
    return [Rollout(correct=answer == a + b, answer=str(answer)) for answer in answers]


async def main() -> None:
    allocator = VIP(rollouts_per_prompt=8, high=16, predictor=DiscountedCounts())
    for step in range(5):
        batch = await collect_async(allocator, PROMPTS, sample)
        groups = allocator.groups(batch)
        rewards = [reward for group in groups for reward in group.rewards]
        ids = [q for q, group in enumerate(groups) for _ in group.rollouts]
        loss_weights = rloo(rewards, ids) * prompt_weights(ids)  # of the log-probabilities in your loss
        allocator.observe(batch)
        print(
            f"step {step}: asked {batch.asked.tolist()}, correct {batch.successes.tolist()}, {len(loss_weights)} rows"
        )


asyncio.run(main())
