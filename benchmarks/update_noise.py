"""How noisy is an update of 64 rollouts? The cosine of two independent ones at one policy of the lab, before training.

The noise scale of McCandlish et al. 2018 (arXiv 1812.06162) is the number of rollouts at which the noise of an update
is as large as the gradient: tr(covariance of one rollout) / |gradient|^2. Two updates of B rollouts have a cosine of
about B / (B + noise scale), so the noise scale follows from it.

    python -m benchmarks.update_noise
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from itertools import combinations

import numpy as np
import torch

from apportion.allocators import Uniform
from apportion.baselines import Zero
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import surrogate_loss, training_rows
from apportion.lab.training.settings import Training
from apportion.types import Group
from benchmarks.bases import base_folder
from benchmarks.common import spread, write
from benchmarks.stable import BASES, pool_of

ROLLOUTS = 64
UPDATES = 20
SHAPES = {
    "8 prompts x 8": (8, 8, False),
    "16 prompts x 4": (16, 4, False),
    "64 single, no baseline": (64, 1, False),
    "8 prompts x 8, .1 < p < .9": (8, 8, True),
    "16 prompts x 4, .1 < p < .9": (16, 4, True),
    "64 single, no baseline, .1 < p < .9": (64, 1, True),
}
"""The prompts and rollouts of an update, and whether it draws by exact rates."""


def gradient(policy, prompts, rollouts, seed):
    """Return the gradient of one update, and the share of its groups that are mixed."""
    sampler = LedgerSampler(policy, seed)
    groups = [
        Group(*each) for each in zip(prompts, map(tuple, sampler(prompts, [rollouts] * len(prompts))), strict=True)
    ]
    single = {"estimator": "reinforce", "baseline": Zero()} if rollouts == 1 else {}
    rows = [row for row in training_rows(groups, Training(**single).decisions(Uniform(rollouts))) if row.advantage]
    parameters = list(policy.parameters())
    found = torch.zeros(sum(each.numel() for each in parameters), dtype=torch.float64)
    for first in range(0, len(rows), 256):
        parts = torch.autograd.grad(surrogate_loss(policy, rows[first : first + 256]), parameters)
        found += torch.cat([part.flatten() for part in parts]).double()
    return found, np.mean([group.informative for group in groups])


def cosine(one, other):
    return float(one @ other / (one.norm() * other.norm() + 1e-30))


def of_base(base):
    """Return the cosine of two updates, the noise scale and the mixed share of each shape on one base."""
    torch.set_num_threads(1)
    policy, random = base_policy(base_folder(base)), np.random.default_rng(base)
    pool = pool_of(base, 2000, 2048)
    p = exact_success(policy, pool.problems)
    found = {}
    for name, (number, rollouts, middle) in SHAPES.items():
        places = np.flatnonzero((p > 0.1) & (p < 0.9)) if middle else np.arange(len(p))
        drawn = [random.choice(places, number, replace=False) for _ in range(UPDATES)]
        updates = [
            gradient(policy, [pool.prompts[place] for place in own], rollouts, seed) for seed, own in enumerate(drawn)
        ]
        same = np.mean([cosine(one, other) for (one, _), (other, _) in combinations(updates, 2)])
        found[name] = same, ROLLOUTS * (1 / same - 1), np.mean([mixed for _, mixed in updates])
    return found


def main():
    bases = [of_base(base) for base in range(BASES)]
    rows = []
    for name, (_, rollouts, _) in SHAPES.items():
        same, scale, mixed = zip(*(base[name] for base in bases), strict=True)
        median = f"{np.median(scale):,.0f} ({min(scale):,.0f} to {max(scale):,.0f})"
        rows.append([name, spread(same, ".3f"), median, "-" if rollouts == 1 else f"{np.mean(mixed):.2f}"])
    write(
        "update_noise",
        "Two independent updates of 64 rollouts at one policy of the lab",
        ["update", "their cosine", "noise scale, rollouts", "mixed groups"],
        rows,
        [
            f"{BASES} bases before training, 2,048 problems, {UPDATES} updates and all their pairs. Groups have RLOO's "
            "baseline. Cosines are means over bases with 95% intervals; noise scales are medians, with the least and "
            "the largest of a base.",
        ],
        seeds=range(BASES),
    )


if __name__ == "__main__":
    main()
