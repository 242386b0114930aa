"""The size and the reuse that every allocator states, against its finished batches and groups."""

import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from apportion import Uniform, collect
from apportion.allocators import ALLOCATORS, Allocator, Size
from apportion.config import build
from tests.builders import bernoulli_sampler, make_prompts
from tests.rules import IN_TOKENS, MAKE, in_tokens

VARIANTS = tomllib.loads("""
"ar3po that recomputes" = {name = "ar3po", stages = 2, rollouts_per_stage = 3, reuse = "recompute"}
"ar3po that replays" = {name = "ar3po", stages = 2, rollouts_per_stage = 3, reuse = "replay"}
"ar3po without reuse" = {name = "ar3po", stages = 3, rollouts_per_stage = 2, reuse = "none"}
"dapo with a target" = {name = "dapo", rollouts_per_prompt = 4, target = 2, draw = 3, max_draws = 5}
"reinforce_ada that trains on all" = {name = "reinforce_ada", rollouts_per_round = 3, rounds = 2, down_sample = false}
"reinforce_ada that keeps an odd number" = {name = "reinforce_ada", rollouts_per_round = 3, rounds = 3, keep = 5}
"even with a broken average" = {name = "even", rollouts_per_prompt = 2.5}
"voting that retains the first" = {name = "voting", min_samples = 3, max_samples = 8, retain = "first"}
"ttrl that retains all" = {name = "ttrl", max_samples = 7, min_samples = 3, retain = "all"}
"optpo that retains all" = {name = "optpo", min_samples = 2, max_samples = 9, exceedances = 3, retain = "all"}
["shared_votes that retain all"]
name = "shared_votes"
samples_per_prompt = 4.5
min_samples = 2
max_samples = 9
rounds = 2
retain = "all"
""")
TRAINS_ON_EARLIER = ("ar3po that recomputes", "ar3po that replays")
EVERY = {
    **{name: MAKE[name] for name in sorted(ALLOCATORS)},
    **{f"{name} in tokens": lambda name=name: in_tokens(MAKE[name]()) for name in IN_TOKENS},
    **{title: partial(build, Allocator, settings) for title, settings in VARIANTS.items()},
}
BATCHES = 60


def finished_batches(allocator):
    """Yield (number of prompts at the start, batch) of random sizes, success rates and failures, and observe each.

    Prompts have different lengths and completions are distinct.
    """
    rng = np.random.default_rng(0)
    for seed in range(BATCHES):
        size, population = int(rng.integers(1, 4)), make_prompts(60)
        success = rng.choice([0.0, 0.1, 0.5, 0.5, 0.9, 1.0], len(population))
        sample = bernoulli_sampler(success, seed, failing=rng.choice([0.0, 0.0, 0.3]), completions=True)
        fresh = iter(population[size:])
        source = lambda n, fresh=fresh: [next(fresh) for _ in range(n)]  # noqa: E731
        batch = collect(allocator, population[:size], sample, source=source)
        yield size, batch
        allocator.observe(batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_what_is_asked_kept_and_reused_is_what_the_rule_says(name):
    """No batch asks for or keeps more than its size, and some as much; earlier rollouts enter if ``needs`` says so."""
    allocator = EVERY[name]()
    reached, unused, reused, with_behaviour = False, [], 0, 0
    for prompts, batch in finished_batches(allocator):
        size, asked, kept = allocator.size(prompts), int(batch.asked.sum()), 0
        for group in allocator.groups(batch):
            kept += int(group.keep.sum())
            from_store = np.array([rollout.step is not None for rollout in group.rollouts]) & group.keep
            reused += int(from_store.sum())
            with_behaviour += int((from_store & ~group.recompute).sum())
        assert kept <= size.kept and (size.asked is None or asked <= size.asked)
        unused.append(size.kept - kept)
        reached |= asked == size.asked
        if size.exact and getattr(allocator, "retain", "all") == "all":
            assert size.kept == asked
    assert min(unused) == 0 or "in tokens" in name
    assert reached or not size.exact
    assert (reused > 0) == allocator.needs.reused_rollouts == (name in TRAINS_ON_EARLIER)
    assert (with_behaviour > 0) == allocator.needs.behaviour_logprobs
    assert allocator.needs.reused_rollouts or not allocator.needs.behaviour_logprobs


@pytest.mark.parametrize("name", IN_TOKENS)
def test_a_token_budget_is_bounded_by_the_most_of_a_prompt_and_what_cannot_be_planned_has_no_size(name):
    allocator = in_tokens(MAKE[name]())
    cheap = replace(allocator, lengths=replace(allocator.lengths, initial=1))
    batch = collect(cheap, make_prompts(3), bernoulli_sampler([0.5] * 3))
    assert batch.asked.sum() == cheap.size(3).kept == 3 * cheap.high
    allocator = replace(MAKE[name](), rollouts_per_prompt=None, budget=18)
    assert allocator.size(3).kept == 18
    with pytest.raises(ValueError, match="budget must be between"):
        allocator.size(100)


def test_a_size_is_unbounded_by_default():
    class Other(Allocator):
        """Plans as Uniform does."""

        name = "other"

        def plan(self, batch):
            return Uniform(2).plan(batch)

    assert Other().size(4) == Size(asked=None, kept=None, exact=False)
