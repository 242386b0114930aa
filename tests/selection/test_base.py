"""What every rule of selection must do: choose distinct prompts, remember, resume, report coverage, and refuse."""

import copy

import numpy as np
import pytest

from apportion import VIP, Uniform, collect
from apportion.predictors import DiscountedCounts, EmpiricalBayes
from apportion.selection import SELECTORS, LargestVariance, Mixed, ShuffledEpochs, check_selector
from apportion.types import Needs, Prompt, Rollout
from tests.builders import bernoulli_sampler, finished, make_prompts
from tests.damaged_states import check_damage, places

EASE = np.array([0.0, 0.02, 0.1, 0.3, 0.5, 0.5, 0.7, 0.9, 0.98, 1.0] * 6)
PROMPTS = make_prompts(len(EASE))
LEARNING = sorted(SELECTORS.keys() - {"shuffled"})


def prepared(name, seed=3, prompts=PROMPTS, predictor=None, **own):
    selector = SELECTORS[name](**own)
    selector.prepare(prompts, seed, predictor)
    return selector


def step(selector, sample, count=12, learn=True):
    """Choose, sample 4 rollouts each, observe; return the chosen rows."""
    rows = selector.choose(count)
    batch = collect(Uniform(4), [PROMPTS[row] for row in rows], sample)
    if learn:
        selector.observe(batch)
    return rows


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_choice_has_distinct_prompts_that_are_not_held(name):
    selector, sample = prepared(name), bernoulli_sampler(EASE)
    for _ in range(12):
        rows = step(selector, sample)
        assert len(set(rows)) == 12 and all(0 <= row < len(PROMPTS) for row in rows)
        fresh = selector.choose(20, held={PROMPTS[row].id for row in rows})
        assert len(set(fresh)) == 20 and not set(fresh) & set(rows)


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_all_prompts_can_be_chosen_at_once_and_one_more_is_refused(name):
    selector = prepared(name)
    assert sorted(selector.choose(60)) == list(range(60))
    assert sorted(selector.choose(60)) == list(range(60))
    with pytest.raises(ValueError, match="a batch needs 61 distinct prompts, the data set holds 60; lower"):
        selector.choose(61)
    with pytest.raises(ValueError, match="a batch needs 61 distinct prompts"):
        selector.choose(60, held={PROMPTS[0].id})


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_choice_depends_on_the_seed_and_on_nothing_that_is_random(name):
    runs = {}
    for seed in (0, 0, 1):
        selector, sample = prepared(name, seed), bernoulli_sampler(EASE)
        rows = [step(selector, sample) for _ in range(6)]
        assert runs.setdefault(seed, rows) == rows
    assert runs[0] != runs[1]


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_restored_rule_chooses_as_the_saved_one(name):
    selector, sample = prepared(name), bernoulli_sampler(EASE)
    for _ in range(5):
        step(selector, sample)
    selector.choose(7)  # not yet observed
    state = copy.deepcopy(selector.state_dict())
    restored = prepared(name, seed=99)
    restored.load_state_dict(state)
    assert restored.metrics() == selector.metrics()
    for _ in range(4):
        rows = selector.choose(12)
        assert restored.choose(12) == rows
        batch = collect(Uniform(4), [PROMPTS[row] for row in rows], sample)
        selector.observe(batch)
        restored.observe(batch)


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_state_survives_a_data_set_that_changed(name):
    selector, sample = prepared(name), bernoulli_sampler(EASE)
    for _ in range(20):
        step(selector, sample)
    assert selector.metrics()["never_chosen"] < 1
    changed = [*PROMPTS[30:], Prompt("new")]
    restored = prepared(name, prompts=changed)
    restored.load_state_dict(selector.state_dict())
    assert restored.metrics()["never_chosen"] >= 1 / 31
    for _ in range(3):
        assert len(set(restored.choose(5))) == 5


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_the_state_of_another_rule_or_setting_is_refused(name):
    selector = prepared(name)
    state = selector.state_dict()
    other = prepared("mixed" if name != "mixed" else "greso")
    with pytest.raises(ValueError, match="the state must come from the selector"):
        other.load_state_dict(state)
    for damaged in ({**state, "steps": -1}, {**state, "seen": state["seen"][:-1]}, {**state, "ids": ["a", "a"]}):
        with pytest.raises(ValueError, match=f"in a saved state of '{name}', got"):
            selector.load_state_dict(damaged)
    with pytest.raises(ValueError, match=f"a saved state of '{name}' must have"):
        selector.load_state_dict({key: value for key, value in state.items() if key != "seed"})


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_damage_anywhere_in_a_state_is_a_value_error_that_changes_nothing_or_does_no_harm(name):
    selector = prepared(name)
    step(selector, bernoulli_sampler(EASE))

    def own(state):
        return (path for path in places(state) if path[:1] != ("predictor",))

    assert check_damage(lambda: prepared(name), selector.state_dict(), lambda loaded: loaded.choose(12), own) > 100


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_prompt_that_is_there_twice_counts_once(name):
    selector = prepared(name, prompts=[*PROMPTS[:5], *PROMPTS[:5], Prompt("last")])
    assert sorted(selector.choose(6)) == [0, 1, 2, 3, 4, 10]


@pytest.mark.parametrize("name", LEARNING)
def test_a_prompt_is_not_chosen_again_before_its_outcome_is_known(name):
    """Engines ask for the next batch before they observe the present one."""
    selector, sample = prepared(name), bernoulli_sampler(EASE)
    first = step(selector, sample, learn=False)
    assert not set(selector.choose(12)) & set(first)


@pytest.mark.parametrize("name", LEARNING)
def test_a_prompt_whose_outcome_never_comes_is_chosen_again(name):
    selector = prepared(name, prompts=PROMPTS[:24])
    chosen = [row for _ in range(30) for row in selector.choose(2)]
    assert len(chosen) == 60 and max(np.bincount(chosen)) > 1


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_it_reports_what_was_never_chosen_and_the_longest_wait(name):
    selector = prepared(name)
    assert selector.metrics()["never_chosen"] == 1
    seen = {}
    sample = bernoulli_sampler(EASE)
    for number in range(8):
        seen |= dict.fromkeys(step(selector, sample), number)
        found = selector.metrics()
        assert found["never_chosen"] == pytest.approx(1 - len(seen) / 60)
        oldest = min([*seen.values(), -1] if len(seen) < 60 else seen.values())
        assert found["longest_wait"] == number - oldest


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_prompts_of_another_data_set_and_failed_ones_are_no_outcome(name):
    selector, sample = prepared(name), bernoulli_sampler(EASE)
    step(selector, sample)
    selector.observe(finished([Prompt("stranger")], [[Rollout(True)] * 2]))
    rows = selector.choose(12)
    selector.observe(finished([PROMPTS[row] for row in rows], [[]] * 12, [4] * 12))
    assert len(selector.choose(12)) == 12


def test_beliefs_are_shared_with_the_allocator_or_learned_alone():
    allocator = VIP(rollouts_per_prompt=4, predictor=DiscountedCounts(discount=1.0))
    shared, own = Mixed(), Mixed(predictor=DiscountedCounts(discount=1.0))
    for selector in (shared, own):
        selector.prepare(PROMPTS, 0, allocator.predictor)
    batch = collect(allocator, PROMPTS[:3], bernoulli_sampler(EASE))
    allocator.observe(batch)
    for selector in (shared, own):
        selector.observe(batch)
    expected = allocator.predictor.predict(PROMPTS).alpha.tolist()
    assert expected[:3] != [1.0] * 3
    assert shared._predict().alpha.tolist() == own._predict().alpha.tolist() == expected
    assert shared.state_dict()["predictor"] is None and own.state_dict()["predictor"] is not None
    with pytest.raises(ValueError, match="predictor must be None, because the allocator's predictor is shared"):
        shared.load_state_dict(own.state_dict() | {"settings": shared.state_dict()["settings"]})
    with pytest.raises(ValueError, match="predictor must be that of a predictor in a saved state of 'mixed', got None"):
        own.load_state_dict(shared.state_dict() | {"settings": own.state_dict()["settings"]})


def test_without_an_allocators_predictor_it_learns_one():
    selector = prepared("mixed")
    assert isinstance(selector._belief, EmpiricalBayes)
    with pytest.raises(ValueError, match="variance must know the data set before it chooses, got none; call prepare"):
        LargestVariance()._predict()


def test_rules_that_learn_need_labels_and_rewards_that_they_can_read():
    check_selector(ShuffledEpochs(), Needs(labels=False))
    for name in LEARNING:
        with pytest.raises(ValueError, match=f"selection must be shuffled without labels, .* got {name}; leave it out"):
            check_selector(SELECTORS[name](), Needs(labels=False))
        check_selector(SELECTORS[name](), Needs(), graded=True)
    counting = Mixed(predictor=DiscountedCounts())
    check_selector(counting, Needs())
    with pytest.raises(ValueError, match="must take graded rewards, got one that counts right rollouts"):
        check_selector(counting, Needs(), graded=True)


def test_wrong_counts_are_refused():
    for count in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="count must be"):
            prepared("mixed").choose(count)
    with pytest.raises(ValueError, match="seed must be"):
        prepared("mixed", seed=-1)


@pytest.mark.parametrize("name", LEARNING)
def test_choices_go_by_the_verdict_whatever_the_reward(name):
    """Wrong answers with shaping are no mixed group. Without verdicts the rewards decide."""
    rewards = np.random.default_rng(0).normal(size=(len(PROMPTS), 4))
    chosen = []
    for verdicts, shaping in ((True, 1.0), (True, 0.0), (False, 1.0)):
        selector = prepared(name)
        rollouts = [
            [Rollout(own < p if verdicts else None, reward=float(own < p) + shaping * own) for own in row]
            for p, row in zip(EASE, rewards, strict=True)
        ]
        selector.choose(12)
        selector.observe(finished(PROMPTS, rollouts))
        chosen.append(selector.choose(30))
    assert chosen[0] == chosen[1] and (chosen[0] != chosen[2] or name in ("mopps", "thompson"))
