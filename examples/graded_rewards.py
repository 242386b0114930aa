"""Split the budget when rewards are scores: VIP gives more rollouts to prompts whose score is expected to vary more.

A rubric gives each rollout a score in [0, 1]. ``graded_gp`` predicts the variance of the score from embeddings, also of
prompts that were never sampled. ``running_variance`` needs no embeddings, but knows only prompts that were sampled.
"""

import numpy as np

from apportion import VIP, Prompt, Rollout, collect
from apportion.advantages import prompt_weights, rloo
from apportion.predictors import GradedGaussianProcess, PrecomputedEmbeddings, RunningVariance

rng = np.random.default_rng(0)
prompts = [Prompt(f"essay {q}", data=q / 200) for q in range(200)]  # data: how open the question is, from 0 to 1
embeddings = np.array([[prompt.data, 0.1 * rng.random()] for prompt in prompts])


def scores(prompts, counts):
    """Stands for your engine and your rubric: the more open the question, the more the score varies."""
    drawn = [rng.beta(2, 2, n) * prompt.data + (1 - prompt.data) / 2 for prompt, n in zip(prompts, counts, strict=True)]
    return [[Rollout(reward=float(score)) for score in group] for group in drawn]


for predictor in (GradedGaussianProcess(PrecomputedEmbeddings.from_array(prompts, embeddings)), RunningVariance()):
    allocator = VIP(rollouts_per_prompt=8, low=3, high=24, predictor=predictor)
    allocator.prepare(prompts)
    noises = []
    for _ in range(20):
        batch = collect(allocator, [prompts[q] for q in rng.choice(200, size=16, replace=False)], scores)
        groups = allocator.groups(batch)
        ids = [q for q, group in enumerate(groups) for _ in group.rollouts]
        rewards = [reward for group in groups for reward in group.rewards]
        loss_weights = rloo(rewards, ids) * prompt_weights(ids)  # of the log-probabilities in your loss
        allocator.observe(batch)
        variance = np.array([prompt.data**2 / 20 for prompt in batch.prompts])  # the true one, unknown to the predictor
        noises.append((variance / (batch.asked - 1)).sum() / (variance / 7).sum())
    print(f"{predictor.name}: gradient variance x{np.mean(noises[10:]):.2f} of that with 8 rollouts a prompt")
