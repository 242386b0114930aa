"""Base policies of the lab that differ in all that chance decides.

Base 0 is `hard`. The others have its demonstrator with another seed, which says which facts are reliable and what is
mistaken for what, and other weights at the start, other demonstrations and another order of them. A base takes about
two minutes to train, once.

    python -m benchmarks.bases 0 1 2 3 4  # train them
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from dataclasses import replace

from apportion.lab.policy.base import trained_policy
from apportion.lab.policy.recipes import RECIPES


def recipe(base):
    """Return the recipe of ``base``, from 0 up."""
    hard = RECIPES["hard"]
    stages = tuple(replace(each, demonstrator=replace(each.demonstrator, seed=base)) for each in hard.stages)
    data = hard.data_seed + base
    return replace(hard, stages=stages, policy_seed=base, data_seed=data, order_seed=base)


def base_folder(base):
    """Return the folder of ``base``, which the first call trains."""
    trained_policy(recipe(base))
    return str(recipe(base).directory)


if __name__ == "__main__":
    for each in map(int, sys.argv[1:]):
        print(each, base_folder(each), flush=True)
