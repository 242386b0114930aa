"""Every registered allocator on every driver."""

import asyncio
import copy
import itertools
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from apportion import collect, collect_async
from apportion.allocators import ALLOCATORS
from apportion.config import dump
from tests.builders import LABEL_FREE, bernoulli_sampler, make_prompts
from tests.rules import IN_TOKENS, MAKE, in_tokens

SUCCESS = (0.0, 0.02, 0.3, 0.5, 0.8, 0.97, 1.0)
POPULATION = SUCCESS * 3
"""Success rates of the batch's prompts, then of the fresh ones that some rules draw: the same again."""


@pytest.fixture(params=[*sorted(ALLOCATORS), *(f"{name} in tokens" for name in IN_TOKENS)])
def make(request):
    """A maker of each allocator, as new at each call."""
    name, tokens = request.param.removesuffix(" in tokens"), request.param.endswith(" in tokens")
    return (lambda: in_tokens(MAKE[name]())) if tokens else MAKE[name]


@pytest.fixture
def allocator(make):
    return make()


def source():
    """Return a source of prompts that the batch does not hold, in order."""
    fresh = iter(make_prompts(len(POPULATION))[len(SUCCESS) :])
    return lambda count: list(itertools.islice(fresh, count))


def finished(allocator, sample):
    return collect(allocator, make_prompts(len(SUCCESS)), sample, source=source())


def unverified(rollouts):
    """Return the rollouts without verdicts and rewards."""
    return [replace(rollout, correct=None, reward=None) for rollout in rollouts]


def has_one_leader(votes):
    (_, first), (_, second) = [*votes.most_common(2), (None, 0), (None, 0)][:2]
    return first > second


def with_other_verdicts(sample):
    """Return ``sample`` with every verdict removed or inverted, and a random reward."""
    rng = np.random.default_rng(0)

    def changed(rollout):
        return replace(rollout, correct=rng.choice([None, not rollout.correct]), reward=rng.normal())

    return lambda prompts, counts: [[changed(rollout) for rollout in own] for own in sample(prompts, counts)]


def learnt(allocator, batches=3, failing=0.0):
    sample = bernoulli_sampler(POPULATION, seed=5, failing=failing, completions=True)
    for _ in range(batches):
        allocator.observe(finished(allocator, sample))
    return allocator


def asynchronously(allocator, sample, delays):
    async def one(prompt, count):
        await asyncio.sleep(delays[prompt.text])
        return sample([prompt], np.array([count]))[0]

    return asyncio.run(collect_async(allocator, make_prompts(len(SUCCESS)), one, source=source()))


def test_all_drivers_give_the_same_batch(allocator):
    learnt(allocator)
    whole = finished(allocator, bernoulli_sampler(POPULATION))
    delays = {prompt.text: 0.002 * (q % 3) for q, prompt in enumerate(make_prompts(len(POPULATION)))}
    concurrent = asynchronously(allocator, bernoulli_sampler(POPULATION), delays)
    assert concurrent.rollouts == whole.rollouts
    assert concurrent.prompts == whole.prompts
    assert concurrent.asked.tolist() == whole.asked.tolist()


def test_a_separable_allocator_plans_each_prompt_as_in_the_batch(allocator):
    if not allocator.separable:
        pytest.skip(f"{allocator.name} couples the prompts of a batch")
    whole = finished(allocator, bernoulli_sampler(SUCCESS))
    sample = bernoulli_sampler(SUCCESS)
    alone = [collect(allocator, [prompt], sample) for prompt in make_prompts(len(SUCCESS))]
    assert [batch.rollouts[0] for batch in alone] == list(whole.rollouts)


@pytest.mark.parametrize(("seed", "failing"), [(0, 0.0), (1, 0.3), (2, 0.3)])
def test_plans_are_pure_and_final_prompts_get_nothing_more_and_their_groups_depend_on_no_other(
    allocator, seed, failing
):
    """In the last round of rules that share a budget all prompts are final, though DAPO cannot know its last draw."""
    learnt(allocator)
    state = copy.deepcopy(allocator.state_dict())
    batch = allocator.start(make_prompts(len(SUCCESS)))
    sample, draw = bernoulli_sampler(POPULATION, seed=seed, failing=failing), source()
    final, alone = set(), {}
    while plan := allocator.plan(batch):
        assert allocator.plan(batch) == plan
        assert not (final and plan.fresh) and not any(plan.counts[q] for q in final)
        if plan.fresh:
            batch = batch.join(allocator.start(draw(plan.fresh)))
            continue
        found = allocator.final(batch, plan)
        assert found.shape == (len(batch.prompts),) and found.dtype == bool
        final |= set(np.flatnonzero(found).tolist())
        batch = batch.add(plan, sample(batch.prompts, plan.counts))
        alone = {q: allocator.groups(batch.part([q])) for q in final}
    groups = allocator.groups(batch)
    assert alone == {q: [group for group in groups if group.prompt is batch.prompts[q]] for q in final}
    assert [g.rollouts for g in groups] == [g.rollouts for g in allocator.groups(batch)]
    assert failing or allocator.separable or allocator.name == "dapo" or found.all()
    np.testing.assert_equal(allocator.state_dict(), state)


@pytest.mark.parametrize("failing", [0.0, 0.3, 1.0])
def test_it_ends_and_keeps_its_budget_when_samples_fail(allocator, failing):
    """An exact size is spent whatever the outcomes."""
    batch, size = finished(allocator, bernoulli_sampler(POPULATION, failing=failing)), allocator.size(len(SUCCESS))
    assert batch.round <= (size.rounds or 3)
    assert (batch.trials.sum() < batch.asked.sum()) == (failing > 0)
    if size.exact:
        assert batch.asked.sum() == size.asked == getattr(allocator, "max_samples", 6) * len(SUCCESS)


@pytest.mark.parametrize("name", IN_TOKENS)
def test_a_token_budget_is_never_overspent_by_the_predicted_lengths(name):
    allocator = learnt(in_tokens(MAKE[name]()))
    for seed in range(3):
        batch = finished(allocator, bernoulli_sampler(SUCCESS, seed=seed, failing=0.2))
        spent = allocator.metrics(batch)
        assert len(set(batch.costs.tolist())) > 1
        assert spent["tokens_planned"] == (batch.costs * batch.asked).sum() <= 360 * len(SUCCESS)
        assert spent["tokens_used"] == sum(rollout.tokens for rollouts in batch.rollouts for rollout in rollouts)
        allocator.observe(batch)


def test_a_rule_says_whether_it_plans_all_at_once(allocator):
    rounds = [
        finished(allocator, bernoulli_sampler(POPULATION, seed=seed, failing=failing)).round
        for seed in range(5)
        for failing in (0.0, 0.5)
    ]
    assert (max(rounds) == 1) == allocator.one_round


def test_groups_hold_every_rollout_of_their_prompts_once(allocator):
    batch = finished(allocator, bernoulli_sampler(POPULATION, failing=0.4))
    groups = allocator.groups(batch)
    places = [batch.prompts.index(group.prompt) for group in groups]
    assert places == sorted(set(places))
    votes = allocator.name in LABEL_FREE
    for q, group in zip(places, groups, strict=True):
        if votes:
            retained = batch.rollouts[q][: None if allocator.retain == "all" else allocator.min_samples]
            assert unverified(group.rollouts) == unverified(retained)
            assert all(rollout.correct is None for rollout in group.rollouts)
        else:
            assert group.rollouts == batch.rollouts[q]
    if not allocator.size(len(SUCCESS)).fresh:  # a rule that draws prompts drops those that it does not want
        labelled = [q for q in range(len(batch.prompts)) if not votes or has_one_leader(batch.votes[q])]
        assert places == [q for q in labelled if batch.rollouts[q]]
    assert all(group.rollouts and group.keep.shape == (len(group.rollouts),) for group in groups)


@pytest.mark.parametrize("name", sorted(LABEL_FREE))
def test_a_label_free_allocator_never_reads_a_verdict(name):
    """Plans, groups and metrics are the same for any verdicts, before and after learning."""
    told, untold = MAKE[name](), MAKE[name]()
    for seed in range(3):
        batch = finished(told, bernoulli_sampler(POPULATION, seed=seed, failing=0.1))
        other = finished(untold, with_other_verdicts(bernoulli_sampler(POPULATION, seed=seed, failing=0.1)))
        assert other.asked.tolist() == batch.asked.tolist()
        assert other.rollouts != batch.rollouts
        assert untold.groups(other) == told.groups(batch)
        assert untold.metrics(other) == told.metrics(batch)
        told.observe(batch), untold.observe(other)
        np.testing.assert_equal(untold.state_dict(), told.state_dict())


def test_a_restored_or_copied_allocator_goes_on_alone_as_the_saved_one(make, allocator):
    learnt(allocator)
    state = allocator.state_dict()
    before = pickle.dumps(state)
    restored = make()
    restored.load_state_dict(state)
    others = restored, copy.deepcopy(allocator), pickle.loads(pickle.dumps(allocator))
    for _ in range(2):
        sample = partial(bernoulli_sampler, POPULATION, seed=9, completions=True)
        mine, *theirs = (finished(each, sample()) for each in (allocator, *others))
        groups = allocator.groups(mine)
        for each, other in zip(others, theirs, strict=True):
            assert mine.asked.tolist() == other.asked.tolist() and each.groups(other) == groups
            each.observe(other)
        allocator.observe(mine)
        for each in others:
            np.testing.assert_equal(each.state_dict(), allocator.state_dict())
    np.testing.assert_equal(state, pickle.loads(before))


def test_what_was_learnt_is_not_compared_shown_or_a_setting(make, allocator):
    learnt(allocator)
    assert allocator == make() and repr(allocator) == repr(make()) and dump(allocator) == dump(make())


def test_the_state_of_another_allocator_is_refused(allocator):
    for state in ({"predictor": "tarot"}, {}, {**allocator.state_dict(), "allocator": "other"}):
        if state != allocator.state_dict():
            with pytest.raises(ValueError, match=r"got|checkpoint"):
                allocator.load_state_dict(state)


def test_an_empty_batch_is_finished(allocator):
    assert collect(allocator, [], bernoulli_sampler([])).round == 0
