"""VIP's Gaussian process on your own embeddings: it predicts prompts that were never sampled from similar ones."""

import numpy as np

from apportion import VIP, Prompt, Rollout, collect
from apportion.predictors import GaussianProcess, PrecomputedEmbeddings

rng = np.random.default_rng(0)
prompts = [Prompt(f"problem {q}", data=q / 200) for q in range(200)]  # data: how hard it is, from 0 to 1
embeddings = np.array([[prompt.data, 0.1 * rng.random()] for prompt in prompts])
predictor = GaussianProcess(PrecomputedEmbeddings.from_array(prompts, embeddings))
allocator = VIP(rollouts_per_prompt=8, low=3, high=24, predictor=predictor)
allocator.prepare(prompts)


def sample(prompts, counts):
    return [
        [Rollout(bool(rng.random() > prompt.data)) for _ in range(n)] for prompt, n in zip(prompts, counts, strict=True)
    ]


for _ in range(6):
    chosen = rng.choice(150, size=16, replace=False)  # the last fifty prompts are never sampled
    allocator.observe(collect(allocator, [prompts[q] for q in chosen], sample))
unseen = predictor.predict(prompts[150:]).mean
print(f"never sampled, true success {1 - 175 / 200:.2f} on average, predicted {unseen.mean():.2f}")
