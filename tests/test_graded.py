"""Graded rewards: who takes them and who refuses, and that VIP plans by their predicted variance."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

from apportion import Prompt, Rollout, collect
from apportion.allocators import Allocator
from apportion.predictors import RunningVariance
from tests.builders import LABELLED, make_prompts
from tests.rules import MAKE


class GradedSampler:
    """Rewards in [0, 1] without a verdict, and how often it was called."""

    def __init__(self):
        self.rng, self.calls = np.random.default_rng(0), 0

    def __call__(self, prompts, counts):
        self.calls += 1
        return [
            [
                Rollout(answer=f"{r:.1f}", reward=r, tokens=5, score_norm=1.0)
                for r in self.rng.random(n).round(2).tolist()
            ]
            for n in counts
        ]


def source():
    fresh = itertools.count(100)
    return lambda count: [Prompt(f"prompt {next(fresh)}") for _ in range(count)]


def for_graded(allocator):
    """The same rule with a predictor of reward variance wherever it, or a rule inside it, takes a predictor."""
    settings = {field.name: getattr(allocator, field.name) for field in fields(allocator)}
    inner = {name: for_graded(value) for name, value in settings.items() if isinstance(value, Allocator)}
    return replace(allocator, **inner, **({"predictor": RunningVariance()} if "predictor" in settings else {}))


@pytest.fixture(params=sorted(LABELLED))
def allocator(request):
    return MAKE[request.param]()


def test_every_allocator_says_which_rewards_it_takes(allocator):
    text = type(allocator).__doc__
    assert "binary" in text or "graded" in text
    if for_graded(allocator).needs.binary:
        assert "needs binary rewards" in text
    else:
        assert "graded" in text


def test_one_that_needs_binary_rewards_refuses_others_before_a_second_round(allocator):
    if not allocator.needs.binary:
        pytest.skip(f"{allocator.name} takes graded rewards as it is")
    sample = GradedSampler()
    with pytest.raises(ValueError, match=rf"rewards must be 0 or 1 for {allocator.name}, .* got 0\.\d+ .*; .* graded"):
        collect(allocator, make_prompts(6), sample, source=source())
    assert sample.calls == 1
