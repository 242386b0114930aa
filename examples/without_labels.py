"""Learn without labels: the majority of a vote is the label, and agreement with it is the reward."""

import random

from apportion import TTRL, OptPO, Prompt, Rollout, SharedVotes, Voting, collect
from apportion.advantages import advantages_of

RNG = random.Random(0)
PROMPTS = [Prompt(f"{a} x {b}?", data=(a * b, skill)) for a, b, skill in [(6, 7, 0.9), (17, 23, 0.6), (87, 96, 0.2)]]


def sample(prompts, counts):
    """Stands for your engine, which is correct with probability ``skill``. A rollout carries its answer, or None."""
    return [[Rollout(answer=answer(*prompt.data)) for _ in range(n)] for prompt, n in zip(prompts, counts, strict=True)]


def answer(right, skill):
    return str(right) if RNG.random() < skill else RNG.choice([None, str(right + 10), str(right - RNG.randrange(9))])


rules = {
    "the full vote": TTRL(max_samples=64, min_samples=16),
    "OptPO": OptPO(min_samples=16, max_samples=64),
    "our rule, all in the loss": Voting(max_samples=64, min_samples=16),
    "one budget for the batch": SharedVotes(samples_per_prompt=32, min_samples=16),
}
for name, allocator in rules.items():
    batch = collect(allocator, PROMPTS, sample)
    groups = allocator.groups(batch)  # prompts without a pseudo-label are left out
    advantages = advantages_of(groups, "grpo")  # or reinforce_plus_plus, sft, rloo, ...
    labels = [f"{label.answer} ({label.status}, {label.share:.0%})" for label in allocator.labels(batch)]
    print(f"{name:26} {batch.asked.tolist()} samples, {len(advantages)} in the loss: {', '.join(labels)}")
