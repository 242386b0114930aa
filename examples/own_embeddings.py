"""VIP's Gaussian process on your own embeddings: it predicts prompts that were never sampled from similar ones.

Success rates of a few rollouts are noisy, and the paper's process takes them as exact. On prompts as close as these it
then swings far beyond them. ``noise=1`` tells it how little one rate says.
"""

import numpy as np

from apportion import VIP, Prompt, Rollout, collect
from apportion.predictors import GaussianProcess, PrecomputedEmbeddings

rng = np.random.default_rng(0)
prompts = [Prompt(f"problem {q}", data=q / 200) for q in range(200)]  # data: how hard it is, from 0 to 1
embeddings = np.array([[prompt.data, 0.1 * rng.random()] for prompt in prompts])
predictor = GaussianProcess(PrecomputedEmbeddings.from_array(prompts, embeddings), noise=1.0)
allocator = VIP(rollouts_per_prompt=8, low=3, high=24, predictor=predictor)
allocator.prepare(prompts)


def sample(prompts, counts):
    return [
        [Rollout(bool(rng.random() > prompt.data)) for _ in range(n)] for prompt, n in zip(prompts, counts, strict=True)
    ]


unseen, seen = prompts[::4], [prompt for q, prompt in enumerate(prompts) if q % 4]  # every fourth is never sampled
for _ in range(12):
    chosen = rng.choice(len(seen), size=16, replace=False)
    allocator.observe(collect(allocator, [seen[q] for q in chosen], sample))

truth, predicted = np.array([1 - prompt.data for prompt in unseen]), predictor.predict(unseen).mean
print("prompts that were never sampled, by their true success:")
for low, high in ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01)):
    band = (truth >= low) & (truth < high)
    print(f"  true {truth[band].mean():.2f}, predicted {predicted[band].mean():.2f}")
print(f"mean error {np.abs(predicted - truth).mean():.2f}; always saying 0.50 errs by {np.abs(0.5 - truth).mean():.2f}")
