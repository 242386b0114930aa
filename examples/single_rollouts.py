"""Single rollouts: a prompt has no group to compare with, so its baseline is predicted from earlier steps."""

import numpy as np

from apportion import Prompt, Rollout, Uniform, collect
from apportion.advantages import advantages_of
from apportion.baselines import Optimal

rng = np.random.default_rng(0)
prompts = [Prompt("hard"), Prompt("even"), Prompt("nearly solved")]
success = [0.1, 0.5, 0.95]


def sample(batch_prompts, counts):
    """Stands for your engine: each prompt has one parameter and the score r - p, large for a rare outcome."""
    rollouts = []
    for q, n in enumerate(counts):
        right = rng.random(n) < success[q]
        rollouts.append([Rollout(bool(r), score_norm=float(r - success[q]) ** 2) for r in right])
    return rollouts


allocator, baseline = Uniform(rollouts_per_prompt=1), Optimal()
for _ in range(200):
    batch = collect(allocator, prompts, sample)
    groups = allocator.groups(batch)
    fixed = baseline.predict([group.prompt for group in groups])  # before it sees this batch
    advantages = advantages_of(groups, "reinforce", baseline=fixed)
    # ... your update ...
    baseline.update(batch)

print(
    "baselines, where the best are 0.9, 0.5 and 0.05:",
    dict(zip([prompt.text for prompt in prompts], fixed.round(2).tolist(), strict=True)),
)
print("advantages of the last step:", advantages.round(2).tolist())
