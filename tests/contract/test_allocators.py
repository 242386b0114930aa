"""Every allocator of the registry, on every driver."""

import asyncio
import copy

import numpy as np
import pytest

from apportion import HORA, VIP, Uniform, collect, collect_async
from apportion.allocators import ALLOCATORS
from apportion.predictors import DiscountedCounts
from tests.builders import bernoulli_sampler, make_prompts

SUCCESS = (0.0, 0.02, 0.3, 0.5, 0.8, 0.97, 1.0)
MAKE = {
    "uniform": lambda: Uniform(rollouts_per_prompt=6),
    "vip": lambda: VIP(rollouts_per_prompt=6, high=16, predictor=DiscountedCounts()),
    "hora": lambda: HORA(pre_rollouts=2, rollouts_per_prompt=6, high=16),
}


@pytest.fixture(params=sorted(ALLOCATORS))
def allocator(request):
    assert request.param in MAKE, f"add {request.param} to MAKE, so that the contract covers it"
    return MAKE[request.param]()


def learnt(allocator, batches=3, failing=0.0):
    sample = bernoulli_sampler(SUCCESS, seed=5, failing=failing)
    for _ in range(batches):
        allocator.observe(collect(allocator, make_prompts(len(SUCCESS)), sample))
    return allocator


def asynchronously(allocator, sample, delays):
    async def one(prompt, count):
        await asyncio.sleep(delays[prompt.text])
        return sample([prompt], np.array([count]))[0]

    return asyncio.run(collect_async(allocator, make_prompts(len(SUCCESS)), one))


def test_all_drivers_give_the_same_batch(allocator):
    learnt(allocator)
    whole = collect(allocator, make_prompts(len(SUCCESS)), bernoulli_sampler(SUCCESS))
    delays = {prompt.text: 0.002 * (q % 3) for q, prompt in enumerate(make_prompts(len(SUCCESS)))}
    concurrent = asynchronously(allocator, bernoulli_sampler(SUCCESS), delays)
    assert concurrent.rollouts == whole.rollouts
    assert concurrent.prompts == whole.prompts
    assert concurrent.asked.tolist() == whole.asked.tolist()


def test_a_separable_allocator_plans_each_prompt_as_in_the_batch(allocator):
    if not allocator.separable:
        pytest.skip(f"{allocator.name} couples the prompts of a batch")
    whole = collect(allocator, make_prompts(len(SUCCESS)), bernoulli_sampler(SUCCESS))
    sample = bernoulli_sampler(SUCCESS)
    alone = [collect(allocator, [prompt], sample) for prompt in make_prompts(len(SUCCESS))]
    assert [batch.rollouts[0] for batch in alone] == list(whole.rollouts)


def test_plan_is_a_pure_function_of_the_batch(allocator):
    learnt(allocator)
    state = copy.deepcopy(allocator.state_dict())
    batch = allocator.start(make_prompts(len(SUCCESS)))
    sample = bernoulli_sampler(SUCCESS)
    while plan := allocator.plan(batch):
        assert allocator.plan(batch).counts.tolist() == plan.counts.tolist()
        batch = batch.add(plan, sample(batch.prompts, plan.counts))
    assert [g.rollouts for g in allocator.groups(batch)] == [g.rollouts for g in allocator.groups(batch)]
    np.testing.assert_equal(allocator.state_dict(), state)


@pytest.mark.parametrize("failing", [0.3, 1.0])
def test_it_ends_and_keeps_its_budget_when_samples_fail(allocator, failing):
    batch = collect(allocator, make_prompts(len(SUCCESS)), bernoulli_sampler(SUCCESS, failing=failing))
    assert batch.round <= 3
    assert batch.trials.sum() < batch.asked.sum()
    if allocator.fixed_total:
        assert batch.asked.sum() == 6 * len(SUCCESS)


def test_a_fixed_total_is_kept_whatever_happens(allocator):
    if not allocator.fixed_total:
        pytest.skip(f"{allocator.name} spends what it needs")
    for seed in range(5):
        batch = collect(allocator, make_prompts(len(SUCCESS)), bernoulli_sampler(SUCCESS, seed=seed))
        allocator.observe(batch)
        assert batch.trials.sum() == 6 * len(SUCCESS)


def test_groups_hold_every_rollout_once(allocator):
    batch = collect(allocator, make_prompts(len(SUCCESS)), bernoulli_sampler(SUCCESS, failing=0.4))
    groups = allocator.groups(batch)
    assert sum(len(group.rollouts) for group in groups) == batch.trials.sum()
    assert all(group.rollouts and group.keep.shape == (len(group.rollouts),) for group in groups)


def test_a_restored_allocator_plans_as_the_saved_one(allocator):
    learnt(allocator)
    restored = MAKE[allocator.name]()
    restored.load_state_dict(copy.deepcopy(allocator.state_dict()))
    prompts = make_prompts(len(SUCCESS))
    for _ in range(2):
        mine, theirs = (collect(each, prompts, bernoulli_sampler(SUCCESS, seed=9)) for each in (allocator, restored))
        assert mine.asked.tolist() == theirs.asked.tolist()
        allocator.observe(mine), restored.observe(theirs)


def test_the_state_of_another_allocator_is_refused(allocator):
    with pytest.raises(ValueError, match=r"got|checkpoint"):
        allocator.load_state_dict({"predictor": "tarot"})


def test_an_empty_batch_is_finished(allocator):
    assert collect(allocator, [], bernoulli_sampler([])).round == 0


def test_every_allocator_documents_itself(allocator):
    assert type(allocator).name == allocator.name
    assert (type(allocator).__doc__ or "").strip()
