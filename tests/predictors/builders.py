"""Small builders shared by the predictor tests."""

import numpy as np
from scipy.spatial.distance import pdist, squareform

from apportion.predictors import PrecomputedEmbeddings
from apportion.types import Prompt, Rollout
from tests.builders import finished


def make_prompts(count, prefix="prompt"):
    return [Prompt(f"{prefix} {number}") for number in range(count)]


def make_batch(prompts, successes, trials):
    """Return a finished batch with ``successes`` [P] among ``trials`` [P], and one more failed rollout per prompt."""
    rollouts = [[Rollout(i < s, score_norm=1.0) for i in range(n)] for s, n in zip(successes, trials, strict=True)]
    return finished(prompts, rollouts, [n + 1 for n in trials])


def graded_batch(prompts, rewards, score_norm=None):
    """Return a finished batch with these rewards, one list per prompt, and no verdicts."""
    made = [[Rollout(reward=float(reward), score_norm=score_norm) for reward in group] for group in rewards]
    return finished(prompts, made)


def random_batch(rng, prompts, size):
    """Return a batch of ``size`` distinct prompts with 1 to 16 rollouts each, of any success rate."""
    chosen = rng.choice(len(prompts), size, replace=False)
    trials = rng.integers(1, 17, size)
    return make_batch([prompts[q] for q in chosen], rng.binomial(trials, rng.random(size)).tolist(), trials.tolist())


def embedder_of(prompts, array):
    return PrecomputedEmbeddings.from_array(prompts, array)


def embeddings(count, dimensions):
    """Return normal embeddings [count, dimensions], the same at each call."""
    return np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)


class LatentReference:
    """The Gaussian process of VIP's paper as printed, with Sigma over all prompts, the batch and its complement."""

    def __init__(self, x, bandwidth=None, noise=0.0):
        distances = pdist(x.astype(np.float64))
        self.h = bandwidth or np.median(distances)
        self.sigma = np.exp(-(squareform(distances) ** 2) / (2 * self.h**2))
        self.m, self.noise = np.zeros(len(x)), noise

    def condition(self, b, observed):
        rest = np.setdiff1d(np.arange(len(self.m)), b)
        sigma_bb = self.sigma[np.ix_(b, b)] + self.noise * np.eye(len(b))
        self.m[rest] += self.sigma[np.ix_(rest, b)] @ np.linalg.inv(sigma_bb) @ (np.array(observed) - self.m[b])
        self.m[b] = observed
