import itertools
import logging

import numpy as np
import pytest

from apportion import PilotCommit, Plan, Rollout, collect
from tests.allocators.builders import expected_gradient, source_of
from tests.allocators.test_response_store import Shrinking
from tests.builders import bernoulli_sampler, make_batch, make_prompts


def rollouts(*outcomes, name="r"):
    """Return rollouts with these 0/1 outcomes and distinct completions."""
    return [Rollout(bool(outcome), completion=f"{name} {i}") for i, outcome in enumerate(outcomes)]


def with_two_too_many(**settings):
    """Return an allocator of 4 pilots and 3 commits, target 1, that saw four prompts: the first and last two passed."""
    allocator = PilotCommit(pilots=4, commits=3, target=1, **settings)
    batch = allocator.start(make_prompts(4))
    mixed, solved = [1, 0, 0, 1], [1, 1, 1, 1]
    batch = batch.add(allocator.plan(batch), [rollouts(*own) for own in (mixed, solved, mixed, mixed)])
    assert allocator.plan(batch) == Plan([3, 0, 0, 0])
    batch = batch.add(Plan([3, 0, 0, 0]), [rollouts(0, 1, 0), [], [], []])
    assert not allocator.plan(batch)
    allocator.observe(batch)
    return allocator


def idle(allocator, steps):
    """Let ``steps`` pass in which no prompt passes."""
    for _ in range(steps):
        allocator.observe(allocator.start([]))


# Within a batch


def test_a_prompt_passes_if_the_mean_of_the_pilots_that_arrived_is_within_bounds_that_count():
    batch = make_batch([[1] * k + [0] * (16 - k) for k in (0, 1, 2, 12, 13, 16)])
    assert PilotCommit(target=2).plan(batch) == Plan([0, 0, 48, 48, 0, 0])
    batch = PilotCommit().start(make_prompts(3)).add(Plan([16] * 3), [rollouts(1, 0), rollouts(1, 1), []])
    assert PilotCommit(target=1).plan(batch) == Plan([48, 0, 0])
    assert PilotCommit().plan(make_batch([[1, 0] * 3, [1, 0] * 8])) == Plan([10, 48])  # an interrupted round


def test_commits_and_the_pilots_of_fresh_prompts_share_a_round():
    """Batch of two, one passes; two fresh prompts, both fail; two more, one passes."""
    success = [0.5, 0.0, 1.0, 0.0, 0.5, 1.0]
    allocator = PilotCommit(pilots=16, commits=8)
    source, draws = source_of(make_prompts(6)[2:])
    sample, counted = bernoulli_sampler(success), []

    def counting(prompts, counts):
        counted.append(counts.tolist())
        return sample(prompts, counts)

    batch = collect(allocator, make_prompts(2), counting, source=source)
    assert counted == [[16, 16], [8, 0, 16, 16], [0, 0, 0, 0, 16, 16], [0, 0, 0, 0, 8, 0]]
    assert draws == [2, 2] and batch.round == 4
    groups = allocator.groups(batch)
    assert [group.prompt.text for group in groups] == ["prompt 0", "prompt 4"]
    assert [group.rollouts for group in groups] == [batch.rollouts[0], batch.rollouts[4]]
    assert [len(group.rollouts) for group in groups] == [24, 24]
    assert all(group.keep.all() and not group.recompute.any() for group in groups)
    assert allocator.metrics(batch) == {"piloted": 6, "passed": 2, "committed": 2, "buffered": 0, "capped": 0}


def test_the_last_round_has_commits_only_and_rounds_that_do_not_suffice_are_logged_once_per_batch(caplog):
    """Pilots of the last round could not be followed by commits."""
    source, draws = source_of(make_prompts(20)[2:])
    allocator = PilotCommit(pilots=16, commits=8, max_rounds=3)
    with caplog.at_level(logging.WARNING, logger="apportion"):
        batch = collect(allocator, make_prompts(2), bernoulli_sampler([0.0, 0.0, 0.5, *[0.0] * 17]), source=source)
        assert draws == [2] and batch.asked.tolist() == [16, 16, 24, 16] and batch.round == 3
        assert len(allocator.groups(batch)) == 1
        allocator.observe(batch)
    (record,) = caplog.records
    assert "found 1 prompts of the 2 wanted, among 4 prompts in 3 rounds" in record.getMessage()


# Across batches


def test_pilots_of_prompts_that_passed_too_late_count_when_they_come_again():
    allocator, prompts = with_two_too_many(), make_prompts(4)
    assert allocator.buffered == {prompts[2].id: 0, prompts[3].id: 0}
    batch = allocator.start([prompts[1], prompts[3]])
    assert batch.asked.tolist() == [0, 0] and batch.successes.tolist() == [0, 2]
    assert allocator.plan(batch) == Plan([0, 3])
    batch = batch.add(Plan([0, 3]), [[], rollouts(1, 1, 0, name="commit")])
    assert not allocator.plan(batch)
    (group,) = allocator.groups(batch)
    assert group.prompt == prompts[3] and group.rewards.tolist() == [1, 0, 0, 1, 1, 1, 0]
    assert [rollout.step for rollout in group.rollouts] == [0] * 4 + [None] * 3
    assert group.recompute.tolist() == [True] * 4 + [False] * 3 and group.keep.all()
    assert allocator.metrics(batch) == {"piloted": 0, "passed": 0, "committed": 1, "buffered": 2, "capped": 0}
    allocator.observe(batch)
    assert list(allocator.buffered) == [prompts[2].id]


@pytest.mark.parametrize("age", [1, 4])
def test_pilots_age_out(age):
    allocator, prompt = with_two_too_many(max_age=age), make_prompts(3)[2]
    idle(allocator, age - 1)
    assert allocator.plan(allocator.start([prompt])) == Plan([3])
    idle(allocator, 1)
    assert not allocator.buffered and allocator.plan(allocator.start([prompt])) == Plan([4])
    assert not with_two_too_many(max_age=0).buffered


def test_a_buffered_prompt_that_is_not_needed_keeps_the_age_of_its_pilots():
    allocator, prompts = with_two_too_many(max_age=2), make_prompts(4)
    batch = allocator.start(prompts[2:])
    assert allocator.plan(batch) == Plan([3, 0])
    allocator.observe(batch.add(Plan([3, 0]), [rollouts(0, 0, 1), []]))
    assert allocator.buffered == {prompts[3].id: 0}
    idle(allocator, 1)
    assert not allocator.buffered


def test_old_pilots_are_never_trained_on_twice():
    """Over many steps with few prompts and completions that all differ."""
    rng, allocator, seen = np.random.default_rng(0), PilotCommit(pilots=4, commits=4, target=2, draw=2), []
    prompts, numbers, reused = make_prompts(12), itertools.count(), 0

    def sample(prompts, counts):
        return [[Rollout(bool(x), completion=next(numbers)) for x in rng.random(n) < 0.5] for n in counts]

    for _ in range(60):
        order = [prompts[q] for q in rng.permutation(12)]
        rest = iter(order[6:])
        batch = collect(
            allocator, order[:6], sample, source=lambda count, rest=rest: list(itertools.islice(rest, count))
        )
        for group in allocator.groups(batch):
            assert len(group.rollouts) == 8
            seen += [rollout.completion for rollout in group.rollouts]
            reused += int(group.recompute.sum())
        allocator.observe(batch)
    assert len(seen) == len(set(seen)) and reused > 50


def test_the_buffer_keeps_what_a_later_step_needs():
    allocator, (kept, other) = PilotCommit(pilots=2, commits=2, target=1), make_prompts(2)
    batch = allocator.start([other, kept])
    pilots = [Rollout(correct, completion=Shrinking((1, 2), "text")) for correct in (True, False)]
    allocator.observe(batch.add(Plan([2, 2]), [rollouts(1, 0), pilots]).add(Plan([2, 0]), [rollouts(1, 0), []]))
    assert [r.completion for r in allocator.start([kept]).rollouts[0]] == [Shrinking((1, 2), None)] * 2


# State


@pytest.mark.parametrize(("p", "passes", "ratio"), [(0.1, 0.49, 1.14), (0.9, 0.07, 1.37)])
def test_the_bias_is_as_documented(p, passes, ratio):
    found = expected_gradient(p, 16, lambda right: 48 if 2 <= right <= 12 else None)
    assert found == pytest.approx((ratio, passes), abs=0.006)
