"""Spend a budget in tokens: long completions cost more, so prompts with short ones get more rollouts."""

import numpy as np

from apportion import VIP, Prompt, Rollout, collect
from apportion.predictors import DiscountedCounts, MeanLengths

rng = np.random.default_rng(0)
prompts = [Prompt("short and even"), Prompt("long and even"), Prompt("long and nearly solved")]
success, length = [0.5, 0.5, 0.95], [40, 160, 160]


def sample(batch_prompts, counts):
    """Stands for your engine and your verifier."""
    return [
        [Rollout(bool(rng.random() < success[q]), tokens=length[q]) for _ in range(n)] for q, n in enumerate(counts)
    ]


allocator = VIP(tokens_per_prompt=1200, high=32, predictor=DiscountedCounts(), lengths=MeanLengths(initial=120))
for step in range(4):
    batch = collect(allocator, prompts, sample)
    allocator.observe(batch)
    spent = sum(rollout.tokens for rollouts in batch.rollouts for rollout in rollouts)
    print(f"step {step}: rollouts {batch.asked.tolist()}, {spent} tokens of {3 * 1200}")
