"""Learning under a stream against synchronous training, in the lab, at equal rollouts trained on.

python -m benchmarks.stream_lab
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from apportion import HORA, VIP, Allocator, Uniform
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from benchmarks.common import spread, write

SEEDS = tuple(range(5))
BOUNDS = (None, 0, 1, 2)
RULES: dict[str, Callable[[], Allocator]] = {
    "uniform": lambda: Uniform(rollouts_per_prompt=4),
    "vip": lambda: VIP(rollouts_per_prompt=4, high=16),
    "hora": lambda: HORA(rollouts_per_prompt=4, pre_rollouts=2, high=16),
    "single rollouts": lambda: Uniform(rollouts_per_prompt=1),
}
SETTINGS = {
    "base": "medium", "problems": 160, "prompts_per_step": 16, "slots": 32, "rollouts": 2_560, "held_out": 200,
    "evaluate_every": 512, "rollout_log": "none", "checkpoint_every": 10_000,
}  # fmt: skip


def learnt(task: tuple[str, int | None, int]) -> float:
    """Return the mean of the success over one run."""
    name, bound, seed = task
    settings = SETTINGS | ({"estimator": "batch_optimal", "prompts_per_step": 64} if name == "single rollouts" else {})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Training(age_bound=bound, **settings), RULES[name](), seed, Path(folder))
        trainer.run()
        records = [json.loads(line) for line in trainer.metrics.read_text(encoding="utf-8").splitlines()]
    return float(np.mean([record["success"] for record in records if "success" in record][1:]))


def main() -> None:
    """Train all arms, and write the table."""
    arms = [(name, bound) for name in RULES for bound in BOUNDS if bound in (None, 1) or name != "single rollouts"]
    tasks = [(*arm, seed) for seed in SEEDS for arm in arms]
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = dict(zip(tasks, pool.map(learnt, tasks), strict=True))
    rows = []
    for name, bound in arms:
        less = [found[name, bound, seed] - found[name, None, seed] for seed in SEEDS]
        shown = "-" if bound is None else spread(less, "+.3f").replace("± +", "± ")
        rows.append([f"{name}, {'synchronous' if bound is None else f'bound {bound}'}", shown])
    write(
        "stream_lab",
        "Learning under a stream, in the lab",
        ["rule, age bound", "mean less synchronous"],
        rows,
        [
            "Exact success on 200 held-out prompts, its mean over five points of 2,560 rollouts trained on. "
            "Updates have 64 rollouts, 32 slots sample, an update takes half of the time of sampling one, and longer "
            "problems take longer. Differences are paired by seed. VIP and HORA count by a price in a stream. Single "
            "rollouts wait for no group: each is compared with the rest of its update (batch_optimal).",
        ],
        seeds=SEEDS,
    )


if __name__ == "__main__":
    main()
