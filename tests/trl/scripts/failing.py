"""A run of several processes that must fail: ``HOW`` is a key of ``FAILURES``, and output goes to ``FOLDER``.

python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.trl.scripts.failing HOW FOLDER
"""

import os
import sys
from pathlib import Path

from apportion import HORA
from apportion.trl import AllocatedGRPOTrainer
from tests.trl.scripts.policy import RANK, make_trainer, right

FAILED = 3
"""The exit code of a rank that dies."""


def graded(completions, k, **columns):
    return [0.5] * len(completions)


def dies(completions, k, **columns):
    if RANK == 1:
        os._exit(FAILED)
    return right(completions, k)


def hora():
    return HORA(pre_rollouts=2, rollouts_per_prompt=4)


FAILURES = {
    "graded rewards": lambda: {"allocator": hora(), "reward_funcs": [graded]},
    "the second dies": lambda: {"allocator": hora(), "reward_funcs": [dies]},
}

if __name__ == "__main__":
    how, folder = sys.argv[1:]
    make_trainer(AllocatedGRPOTrainer, Path(folder), **FAILURES[how]()).train()
