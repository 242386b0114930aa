import copy
import itertools
import logging
import pickle
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from apportion import Allocator, PilotCommit, Plan, Rollout, collect
from apportion.advantages import rloo
from apportion.config import build, dump, to_toml
from tests.builders import bernoulli_sampler, make_batch, make_prompts


def rollouts(*outcomes, name="r"):
    """Return rollouts with these 0/1 outcomes and distinct completions."""
    return [Rollout(bool(outcome), completion=f"{name} {i}") for i, outcome in enumerate(outcomes)]


def source_of(prompts):
    """A source of prompts in order that records the size of each draw."""
    rest, draws = iter(prompts), []

    def source(count):
        draws.append(count)
        return list(itertools.islice(rest, count))

    return source, draws


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


def test_the_defaults_are_the_papers():
    allocator = PilotCommit()
    assert (allocator.pilots, allocator.commits, allocator.max_rounds, allocator.max_age) == (16, 48, 10, 4)
    assert (allocator.min_rate, allocator.max_rate) == (0.125, 0.75)


def test_a_prompt_passes_if_the_mean_of_its_pilots_is_within_bounds_that_count():
    batch = make_batch([[1] * k + [0] * (16 - k) for k in (0, 1, 2, 12, 13, 16)])
    assert PilotCommit(target=2).plan(batch) == Plan([0, 0, 48, 48, 0, 0])


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


def test_there_are_two_rounds_and_no_draw_if_enough_pass_at_once():
    allocator = PilotCommit(target=2)
    batch = collect(allocator, make_prompts(6), bernoulli_sampler([0.5, 0.0, 0.4, 1.0, 0.5, 0.0]))
    assert batch.asked.tolist() == [64, 16, 64, 16, 16, 16] and batch.round == 2


def test_the_last_round_has_commits_only():
    """Pilots of the last round could not be followed by commits."""
    source, draws = source_of(make_prompts(20)[2:])
    allocator = PilotCommit(pilots=16, commits=8, max_rounds=3)
    batch = collect(allocator, make_prompts(2), bernoulli_sampler([0.0, 0.0, 0.5, *[0.0] * 17]), source=source)
    assert draws == [2] and batch.asked.tolist() == [16, 16, 24, 16] and batch.round == 3


def test_rounds_that_do_not_suffice_are_logged_once_per_batch(caplog):
    source, _ = source_of(make_prompts(40)[2:])
    allocator = PilotCommit(max_rounds=3)
    with caplog.at_level(logging.WARNING, logger="apportion"):
        batch = collect(allocator, make_prompts(2), bernoulli_sampler([0.5] + [0.0] * 39), source=source)
        assert batch.round == 2 and len(allocator.groups(batch)) == 1
        allocator.observe(batch)
    (record,) = caplog.records
    assert "found 1 prompts of the 2 wanted, among 4 prompts in 2 rounds" in record.getMessage()


def test_nothing_is_logged_if_enough_passed_in_the_last_round(caplog):
    allocator = PilotCommit(max_rounds=2)
    with caplog.at_level(logging.WARNING, logger="apportion"):
        allocator.observe(collect(allocator, make_prompts(2), bernoulli_sampler([0.5, 0.5])))
    assert not caplog.records


def test_it_ends_when_every_sample_fails():
    source, draws = source_of(make_prompts(100)[2:])
    allocator = PilotCommit(max_rounds=5)
    batch = collect(allocator, make_prompts(2), bernoulli_sampler([0.5] * 100, failing=1.0), source=source)
    assert draws == [2, 2, 2] and batch.asked.sum() == 8 * 16 and not allocator.groups(batch)


def test_a_mean_is_over_the_pilots_that_arrived():
    batch = PilotCommit().start(make_prompts(3)).add(Plan([16] * 3), [rollouts(1, 0), rollouts(1, 1), []])
    assert PilotCommit(target=1).plan(batch) == Plan([48, 0, 0])


def test_an_interrupted_round_is_completed():
    batch = make_batch([[1, 0] * 3, [1, 0] * 8])
    assert PilotCommit().plan(batch) == Plan([10, 48])


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


def test_commits_of_a_buffered_prompt_share_a_round_with_pilots():
    allocator, prompts = replace(with_two_too_many(), target=2), make_prompts(4)
    allocator.load_state_dict({**with_two_too_many().state_dict(), "settings": allocator.state_dict()["settings"]})
    assert allocator.plan(allocator.start([prompts[2], prompts[0]])) == Plan([3, 4])


def test_fresh_prompts_may_come_with_pilots_too():
    allocator, prompts = with_two_too_many(), make_prompts(4)
    batch = allocator.start([prompts[1]]).add(Plan([4]), [rollouts(0, 0, 0, 0)])
    assert allocator.plan(batch) == Plan([0], fresh=1)
    batch = batch.join(allocator.start([prompts[2]]))
    assert allocator.plan(batch) == Plan([0, 3])


@pytest.mark.parametrize("age", [1, 2, 4])
def test_pilots_age_out(age):
    allocator, prompt = with_two_too_many(max_age=age), make_prompts(3)[2]
    idle(allocator, age - 1)
    assert allocator.plan(allocator.start([prompt])) == Plan([3])
    idle(allocator, 1)
    assert not allocator.buffered and allocator.plan(allocator.start([prompt])) == Plan([4])


def test_a_buffered_prompt_that_is_not_needed_keeps_the_age_of_its_pilots():
    allocator, prompts = with_two_too_many(max_age=2), make_prompts(4)
    batch = allocator.start(prompts[2:])
    assert allocator.plan(batch) == Plan([3, 0])
    allocator.observe(batch.add(Plan([3, 0]), [rollouts(0, 0, 1), []]))
    assert allocator.buffered == {prompts[3].id: 0}
    idle(allocator, 1)
    assert not allocator.buffered


def test_without_age_nothing_is_reused():
    allocator = with_two_too_many(max_age=0)
    assert not allocator.buffered and not allocator.needs.reused_rollouts and not allocator.needs.reused_incorrect
    assert PilotCommit().needs.reused_rollouts and PilotCommit().needs.reused_incorrect


def test_pilots_without_a_completion_are_not_kept():
    allocator = PilotCommit(pilots=4, commits=2, target=1)
    allocator.observe(make_batch([[1, 0, 0, 1], [1, 0, 1, 0]]))
    assert not allocator.buffered


def test_a_prompt_that_is_twice_in_a_batch_has_its_old_pilots_once():
    allocator, prompt = with_two_too_many(), make_prompts(3)[2]
    batch = allocator.start([prompt, prompt])
    assert list(map(len, batch.rollouts)) == [4, 0]


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


class Shrinking(str):
    """A completion of which a later step needs the first word."""

    def for_reuse(self):
        return Shrinking(self.split()[0])


def test_the_buffer_keeps_what_a_later_step_needs():
    allocator, (kept, other) = PilotCommit(pilots=2, commits=2, target=1), make_prompts(2)
    batch = allocator.start([other, kept])
    pilots = [Rollout(True, completion=Shrinking("ids text")), Rollout(False, completion=Shrinking("ids text"))]
    allocator.observe(batch.add(Plan([2, 2]), [rollouts(1, 0), pilots]).add(Plan([2, 0]), [rollouts(1, 0), []]))
    assert [rollout.completion for rollout in allocator.start([kept]).rollouts[0]] == ["ids", "ids"]


# State


def test_a_restored_allocator_goes_on_identically():
    allocator, prompts = with_two_too_many(), make_prompts(4)
    twin = PilotCommit(pilots=4, commits=3, target=1)
    twin.load_state_dict(pickle.loads(pickle.dumps(allocator.state_dict())))
    for _ in range(6):
        assert twin.start(prompts) == allocator.start(prompts) and twin.buffered == allocator.buffered
        assert twin.state_dict() == allocator.state_dict()
        idle(allocator, 1), idle(twin, 1)
    assert not twin.buffered


def test_a_state_is_plain_and_a_copy():
    allocator = with_two_too_many()
    state = allocator.state_dict()
    before = copy.deepcopy(state)
    idle(allocator, 5)
    assert state == before
    values = state["buffer"]["pilots"][0][1][0]
    assert {type(value) for value in values.values()} <= {bool, int, float, str, type(None)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step must be a number of at least 0"),
        ({"pilots": None}, "pilots must be a list of prompt ids"),
        ({"pilots": [("id", [])]}, "pilots must be a list of prompt ids"),
        ({"pilots": [(7, [{}])]}, "pilots must be a list of prompt ids"),
        ({"pilots": [("id", [{"correct": True}])]}, "must have"),
    ],
)
def test_a_forged_buffer_is_refused(change, message):
    allocator = with_two_too_many()
    state = allocator.state_dict()
    with pytest.raises(ValueError, match=message):
        allocator.load_state_dict(state | {"buffer": state["buffer"] | change})
    assert allocator.state_dict() == state


@pytest.mark.parametrize("change", [{"correct": None}, {"step": 9}, {"completion": None}, {"reward": float("nan")}])
def test_forged_pilots_are_refused(change):
    state = with_two_too_many().state_dict()
    state["buffer"]["pilots"][0][1][0] |= change
    with pytest.raises(ValueError, match=f"^{next(iter(change))} must be"):
        with_two_too_many().load_state_dict(state)


def test_the_state_of_another_allocator_or_of_other_settings_is_refused():
    with pytest.raises(ValueError, match="must come from the allocator 'pilot_commit', got None"):
        PilotCommit().load_state_dict({})
    with pytest.raises(ValueError, match="pilots must be 8 to load this state of 'pilot_commit', got 16"):
        PilotCommit().load_state_dict(PilotCommit(pilots=8).state_dict())


def test_learnt_state_is_not_compared_shown_or_a_setting():
    allocator = with_two_too_many()
    fresh = PilotCommit(pilots=4, commits=3, target=1)
    assert allocator == fresh and repr(allocator) == repr(fresh) and dump(allocator) == dump(fresh)
    assert not replace(allocator, draw=2).buffered
    twin = copy.deepcopy(allocator)
    idle(allocator, 5)
    assert twin.buffered and not allocator.buffered


@pytest.mark.parametrize(
    ("p", "passes", "ratio"),
    [(0.1, 0.49, 1.14), (0.3, 0.97, 1.00), (0.5, 0.99, 1.00), (0.7, 0.75, 1.02), (0.9, 0.07, 1.37)],
)
def test_the_bias_is_as_documented(p, passes, ratio):
    """All outcomes of a Bernoulli policy: the score of a rollout is y - p, the true gradient p (1 - p)."""
    gradient, probability = 0.0, 0.0
    for pilots in range(2, 13):
        chance = stats.binom.pmf(pilots, 16, p)
        probability += chance
        for commits in range(49):
            outcomes = np.repeat([1.0, 0.0], [pilots + commits, 64 - pilots - commits])
            one = (rloo(outcomes, [0] * 64) * (outcomes - p)).mean()
            gradient += chance * stats.binom.pmf(commits, 48, p) * one
    assert probability == pytest.approx(passes, abs=0.006)
    assert gradient / probability / (p * (1 - p)) == pytest.approx(ratio, abs=0.006)


def test_graded_rewards_are_refused():
    batch = PilotCommit().start(make_prompts(1)).add(Plan([1]), [[Rollout(reward=0.3)]])
    with pytest.raises(ValueError, match="rewards must be 0 or 1 for pilot_commit"):
        PilotCommit().groups(batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pilots": 0}, "pilots must be at least 1 for pilot_commit, got 0"),
        ({"commits": 0}, "commits must be at least 1 for pilot_commit, got 0"),
        ({"target": 0}, "target must be at least 1 for pilot_commit, got 0"),
        ({"draw": 0}, "draw must be at least 1 for pilot_commit, got 0"),
        ({"max_rounds": 1}, "max_rounds must be at least 2 for pilot_commit, got 1"),
        ({"max_age": -1}, "max_age must be at least 0 for pilot_commit, got -1"),
        ({"min_rate": 0.8}, r"min_rate and max_rate must be in \[0, 1\] .* got 0.8 and 0.75; the paper"),
        ({"max_rate": 1.1}, r"min_rate and max_rate must be in \[0, 1\] .* got 0.125 and 1.1; the paper"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        PilotCommit(**settings)


@pytest.mark.parametrize("allocator", [PilotCommit(), PilotCommit(pilots=8, commits=8, target=3, draw=9, max_age=0)])
def test_settings_survive_the_way_through_toml(allocator):
    assert build(Allocator, tomllib.loads(to_toml(dump(allocator)))) == allocator  # type: ignore[type-abstract]
