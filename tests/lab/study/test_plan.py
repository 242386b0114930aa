from dataclasses import replace

import pytest

from apportion import Uniform
from apportion.allocators import TTRL, OptPO, SharedVotes, Voting
from apportion.lab.study.design import Study
from apportion.lab.study.plan import plan_lines, rollout_bounds
from apportion.lab.training.pool import pool_of
from apportion.lab.training.settings import Training
from tests.builders import LABEL_FREE

STEPS = Training(base="easy", labels="none", steps=10, prompts_per_step=4)


@pytest.mark.parametrize(
    ("allocator", "bounds"),
    [
        (TTRL(max_samples=64, min_samples=16), (2560, 2560)),
        (OptPO(min_samples=16, max_samples=64), (640, 2560)),
        (Voting(min_samples=1, max_samples=8), (40, 320)),
        (SharedVotes(samples_per_prompt=6.7, min_samples=4), (160, 260)),
    ],
)
def test_votes_bound_the_rollouts_of_a_run_by_steps(allocator, bounds):
    """TTRL takes all 64 votes and keeps 16. Shared votes have a budget of int(4 x 6.7) per step."""
    assert rollout_bounds(STEPS, allocator) == bounds


def test_every_rule_without_labels_has_bounds():
    for rule in LABEL_FREE.values():
        least, most = rollout_bounds(STEPS, rule())
        assert 0 < least <= most


def test_other_lengths_are_exact_or_unknown():
    assert rollout_bounds(Training(base="easy", rollouts=640), Uniform()) == (640, 640)
    assert rollout_bounds(Training(base="easy", tokens=640), Uniform()) is None
    assert rollout_bounds(Training(base="easy", steps=640), Uniform()) is None


def lines(training, allocators, pool=None):
    study = Study("s", next(iter(allocators)), allocators, training, seeds=(0, 1))
    return dict(line.split(maxsplit=1) for line in plan_lines(study, pool or pool_of(training, 0)))


def test_a_plan_without_labels_says_who_is_voted_on_how_long_and_the_least_and_most():
    said = lines(STEPS, {"ttrl": TTRL(min_samples=16), "optpo": OptPO(min_samples=16)})
    assert said["prompts"] == (
        "512 for training, 4 a step; 1000 held out; no labels; gold of 512 is for the report alone"
    )
    assert said["steps"] == "10 a run"
    assert said["rollouts"] == "at least 640 and at most 2,560 a run; 6,400 to 10,240 in all"
    bare = replace(pool_of(STEPS, 0), gold={})
    said = lines(STEPS, {"ttrl": TTRL(min_samples=16)}, bare)
    assert said["prompts"].endswith("no labels; no gold, so no accuracy in the report")


def test_a_plan_with_labels_says_what_is_known():
    uniform = {"uniform": Uniform()}
    by_rollouts = lines(Training(base="easy", rollouts=640), uniform)
    assert by_rollouts["rollouts"] == "640 a run, 1,280 in all" and "steps" not in by_rollouts
    assert by_rollouts["prompts"] == "512 for training, 32 a step; 1000 held out"
    by_tokens = lines(Training(base="easy", tokens=5000), uniform)
    assert by_tokens["tokens"] == "5,000 a run" and "rollouts" not in by_tokens
