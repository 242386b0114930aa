import copy

import numpy as np
import pytest

from apportion import Batch, Belief, Prompt, Rollout
from apportion.baselines import BASELINES, SPO, Optimal, Predicted, Zero
from apportion.predictors import DiscountedCounts
from tests.builders import finished, make_batch, make_prompts


def graded_batch(prompts, rollouts):
    """A finished batch; ``rollouts`` holds for each prompt a list of (reward, score norm)."""
    made = [[Rollout(reward=float(r), score_norm=float(h)) for r, h in group] for group in rollouts]
    return finished(prompts, made)


class Bandit:
    """A tabular softmax policy over answers that were each given so many times in ``weights`` [K]; rewards [K]."""

    def __init__(self, weights, rewards):
        self.weights, self.rewards = np.array(weights), np.array(rewards, np.float64)
        self.pi = self.weights / self.weights.sum()
        self.scores = np.eye(len(weights)) - self.pi
        self.norms = (self.scores**2).sum(1)
        self.pairs = np.stack([self.rewards, self.norms], axis=1)

    @property
    def optimal(self):
        return float((self.pi * self.rewards * self.norms).sum() / (self.pi * self.norms).sum())

    def gradients(self, baseline):
        return (self.rewards - baseline)[:, None] * self.scores

    def variance(self, baseline):
        """Total variance of one rollout's gradient, all outcomes enumerated."""
        gradients = self.gradients(baseline)
        return float(self.pi @ (gradients**2).sum(1) - ((self.pi @ gradients) ** 2).sum())

    def rollouts(self):
        """Every answer as often as it is expected to be."""
        return np.repeat(self.pairs, self.weights, axis=0)

    def sample(self, rng, size):
        drawn = rng.choice(len(self.pi), size, p=self.pi)
        return self.pairs[drawn]


BANDITS = (
    Bandit([1, 3, 6], [1, 0, 0]),
    Bandit([5, 3, 2], [1, 0, 0]),
    Bandit([18, 1, 1], [1, 0, 0]),
    Bandit([4, 3, 2, 1], [0.2, 1.5, -1.0, 0.7]),
)


@pytest.mark.parametrize("bandit", BANDITS)
def test_optimal_has_the_smallest_variance_where_every_outcome_came_as_often_as_expected(bandit):
    baseline, prompts = Optimal(), make_prompts(1)
    for _ in range(3):
        baseline.update(graded_batch(prompts, [bandit.rollouts()]))
        found = baseline.predict(prompts)[0]
        assert found == pytest.approx(bandit.optimal, rel=1e-12)
        assert all(bandit.variance(b) > bandit.variance(found) for b in [found - 0.01, found + 0.01, *range(-2, 3)])


def test_a_prompt_that_never_failed_takes_its_baseline_from_prompts_like_it():
    rng, prompts, solved = np.random.default_rng(1), make_prompts(40), BANDITS[2]
    baseline, alone = Optimal(), Optimal(strength=0.0)
    for _ in range(6):
        batch = graded_batch(prompts, [solved.sample(rng, 4) for _ in prompts])
        baseline.update(batch), alone.update(batch)
    spotless = [Prompt("spotless")]
    batch = graded_batch(spotless, [[(1.0, solved.norms[0])] * 6])
    baseline.update(batch), alone.update(batch)
    assert alone.predict(spotless).tolist() == [1.0]
    assert baseline.predict(spotless)[0] < 0.6
    b = baseline.predict(prompts)
    assert np.mean([solved.variance(each) for each in b]) < solved.variance(0.9)


def test_before_anything_was_seen_optimal_is_zero():
    for scope in ("constant", "curve", "prompt"):
        baseline = Optimal(scope=scope)
        assert baseline.predict(make_prompts(2)).tolist() == [0.0, 0.0] and baseline.predict([]).shape == (0,)
        baseline.update(graded_batch(make_prompts(1), [[(1.0, 0.0), (0.0, 0.0)]]))
        assert baseline.predict(make_prompts(2)).tolist() == [0.0, 0.0]


def test_optimal_forgets_what_is_old():
    prompts = make_prompts(1)
    baseline = Optimal(discount=0.0, strength=0.0)
    baseline.update(graded_batch(prompts, [[(1.0, 1.0)] * 9]))
    baseline.update(graded_batch(prompts, [[(1.0, 1.0), (0.0, 3.0)]]))
    assert baseline.predict(prompts).tolist() == [0.25]


def test_predicted_is_the_mean_belief_and_zero_is_zero():
    batch, counts, predicted = make_batch([[1, 1, 0], [0]]), DiscountedCounts(0.5), Predicted(DiscountedCounts(0.5))
    for each in (counts, predicted, zero := Zero()):
        each.update(batch)
    assert predicted.predict(make_prompts(3)).tolist() == counts.predict(make_prompts(3)).mean.tolist()
    assert zero.predict(make_prompts(3)).tolist() == [0.0] * 3
    assert predicted.needs.binary and not zero.needs.binary and not Optimal().needs.binary


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_predicts_saves_and_restores(name):
    baseline, restored, prompts = BASELINES[name](), BASELINES[name](), make_prompts(3)
    rollouts = [[Rollout(True, score_norm=1.0), Rollout(False, score_norm=5.0)], [Rollout(True, score_norm=2.0)], []]
    batch = finished(prompts, rollouts, asked=[2, 1, 1])
    baseline.update(batch)
    state = baseline.state_dict()
    frozen = copy.deepcopy(state)
    restored.load_state_dict(state)
    restored.update(batch), baseline.update(batch)
    np.testing.assert_equal(state, frozen)
    assert restored.predict(prompts).tolist() == baseline.predict(prompts).tolist()
    assert baseline.predict([]).shape == (0,)
    baseline.update(Batch.start([], Belief.uniform(0)))
    with pytest.raises(ValueError, match=f"the baseline '{name}', got 'tarot'"):
        baseline.load_state_dict({"baseline": "tarot"})


SCOPES = ("constant", "curve", "prompt")


def four_bandits(batches, **settings):
    """Return ``Optimal`` of every scope after some batches of ``BANDITS``, whose success rates are .1, .5 and .9."""
    rng, learnt = np.random.default_rng(2), {scope: Optimal(scope=scope, **settings) for scope in SCOPES}
    prompts = make_prompts(3)
    for _ in range(batches):
        batch = graded_batch(prompts, [bandit.sample(rng, 500) for bandit in BANDITS[:3]])
        for baseline in learnt.values():
            baseline.update(batch)
    return {scope: baseline.predict([*prompts, Prompt("never seen")]) for scope, baseline in learnt.items()}


def test_a_constant_is_the_ratio_of_the_sums_of_all_prompts_and_the_same_for_all():
    found = four_bandits(20, pool_discount=1.0)["constant"]
    rights = sum(float(bandit.pi @ (bandit.rewards * bandit.norms)) for bandit in BANDITS[:3])
    norms = sum(float(bandit.pi @ bandit.norms) for bandit in BANDITS[:3])
    assert found == pytest.approx(np.full(4, rights / norms), abs=0.02)
    assert len(set(found.tolist())) == 1


def test_the_finer_the_scope_the_smaller_the_variance_once_much_was_seen():
    found = four_bandits(20, bandwidth=0.3, discount=1.0, pool_discount=1.0)
    assert found["curve"][:3] == pytest.approx([bandit.optimal for bandit in BANDITS[:3]], abs=0.05)
    assert found["curve"][3] == pytest.approx(found["curve"][1], abs=0.05)  # a prompt never seen counts as p = 1/2
    variance = {
        scope: sum(bandit.variance(b) for bandit, b in zip(BANDITS[:3], found[scope][:3], strict=True))
        for scope in SCOPES
    }
    assert variance["prompt"] <= 1.001 * variance["curve"] <= 1.002 * variance["constant"]
    assert variance["constant"] < sum(bandit.variance(bandit.pi[0]) for bandit in BANDITS[:3])


def test_spo_tracks_success_as_its_paper_does_and_discounts_once_for_all_rollouts_of_a_batch():
    rng, prompts = np.random.default_rng(3), make_prompts(2)
    tracker, a, b = SPO(rho=0.9), np.full(2, 0.5), np.full(2, 0.5)
    for visit in range(20):
        rewards = rng.random((2, 1 + visit % 3)).round(2)
        assert tracker.predict(prompts) == pytest.approx(a / (a + b))
        tracker.update(graded_batch(prompts, [[(reward, 1.0) for reward in own] for own in rewards]))
        a, b = 0.9 * a + rewards.sum(axis=1), 0.9 * b + (1 - rewards).sum(axis=1)


def test_spo_starts_from_known_rates_with_the_weight_that_counts_settle_at():
    """A rate of the mapping goes before that of the prompt."""
    prompts = [Prompt("in the mapping", rate=0.9), Prompt("rated", rate=3 / 8), Prompt("unknown")]
    tracker = SPO(rates={prompts[0].id: 3 / 8})
    assert tracker.predict(prompts) == pytest.approx([3.5 / 9, 3.5 / 9, 0.5])
    tracker.update(graded_batch(prompts, [[(1.0, 1.0)]] * 3))
    a, b = 8 * 3.5 / 9, 8 * 5.5 / 9
    assert tracker.predict(prompts) == pytest.approx([*[(0.875 * a + 1) / 8] * 2, 1.4375 / 1.875])
    assert 0.875 * (a + b) + 1 == pytest.approx(8)


@pytest.mark.parametrize("reward", [-0.1, 1.5])
def test_spo_refuses_a_reward_that_is_no_success_and_learns_nothing(reward):
    tracker, prompts = SPO(), make_prompts(2)
    with pytest.raises(ValueError, match=rf"within \[0, 1\] for spo, got {reward} for prompt 'prompt 1'; rescale"):
        tracker.update(graded_batch(prompts, [[(1.0, 1.0)], [(reward, 1.0)]]))
    assert tracker.predict(prompts).tolist() == [0.5, 0.5]
