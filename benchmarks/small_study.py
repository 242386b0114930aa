"""A lab study that takes seconds, on a base policy that is trained in ten seconds, for benchmarks of faults."""

import json

from apportion.lab.policy.base import Recipe, Stage, trained_policy
from apportion.lab.world.demonstrator import EASY, MEDIUM

RECIPE = Recipe(
    (Stage(EASY, steps=360, learning_rate=4e-3), Stage(MEDIUM, steps=40, learning_rate=1e-3)),
    sequences=24_000,
    operation_weights=(4, 2, 1, 1, 1),
)
NAME = "small"
STUDY = """\
# A small study.
name = "small"
baseline = "uniform"
seeds = [0]
processes = {processes}

[training]
base = "{base}"
problems = 16
prompts_per_step = 4
rollouts = {rollouts}
learning_rate = 1e-3
evaluate_every = 80
checkpoint_every = {checkpoint_every}
held_out = 10

[allocators]
uniform = {{ name = "uniform", rollouts_per_prompt = 4 }}
vip = {{ name = "vip", rollouts_per_prompt = 4, high = 12, predictor = "counts" }}
"""


def base_folder():
    """Return the folder of the base policy, which the first call trains."""
    trained_policy(RECIPE)
    return RECIPE.directory


def study_text(base, rollouts, checkpoint_every=2, processes=2):
    """Return the study's TOML."""
    return STUDY.format(base=base, rollouts=rollouts, checkpoint_every=checkpoint_every, processes=processes)


def curves(folder):
    """Return the records of every run of the study in ``folder``, without the time that they took."""
    files = sorted((folder / "runs" / NAME).glob("*-seed*/metrics.jsonl"))
    return {file.parent.name: [_steady(line) for line in file.read_text("utf-8").splitlines()] for file in files}


def _steady(line):
    return {key: value for key, value in json.loads(line).items() if key != "cpu_seconds"}
