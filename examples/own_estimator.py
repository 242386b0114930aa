"""An advantage estimator of your own: RLOO whose negative advantages count half; its check and its bias."""

import numpy as np

from apportion import Prompt, Rollout
from apportion.advantages import ESTIMATORS, advantages_of, rloo
from apportion.types import Group


def half_negative(rewards, group_ids):
    """RLOO whose negative advantages count half."""
    advantages = rloo(rewards, group_ids)
    return np.where(advantages < 0, advantages / 2, advantages)


ESTIMATORS[half_negative.__name__] = half_negative

# Check: nothing from a group of one or of equal rewards, and no effect of the order.
assert half_negative([1, 0, 0, 0], [0, 1, 1, 1]).tolist() == [0, 0, 0, 0]
order = np.random.default_rng(0).permutation(8)
rewards, ids = np.array([1, 0, 0, 1, 1, 1, 0, 1]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
assert np.allclose(half_negative(rewards, ids)[order], half_negative(rewards[order], ids[order]))

# Use: by name.
group = Group(Prompt("1 + 1 ="), (Rollout(True), Rollout(False), Rollout(False)))
assert advantages_of([group], "half_negative").tolist() == [1.0, -0.25, -0.25]


# Is it any good? A policy with one logit has the gradient p (1 - p), and reward - p is the score of a rollout.
def expected(estimator, p, size=4):
    """Return the expected estimate over the true gradient, by adding up all outcomes of a group."""
    total = 0.0
    for bits in range(2**size):
        rewards = np.array([bits >> i & 1 for i in range(size)])
        chance = p ** rewards.sum() * (1 - p) ** (size - rewards.sum())
        total += chance * np.mean(estimator(rewards, np.zeros(size)) * (rewards - p))
    return total / (p * (1 - p))


for p in (0.1, 0.5, 0.9):
    assert np.isclose(expected(rloo, p), 1) and np.isclose(expected(half_negative, p), 1 - p / 2)
    print(f"p = {p}: {expected(half_negative, p):.2f} of the true gradient")
