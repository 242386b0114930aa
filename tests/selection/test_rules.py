"""Each rule of selection against its formula or its source, worked out another way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from apportion.predictors import Predictor
from apportion.selection import GRESO, LargestVariance, Mixed, MoPPS, Retire, ShuffledEpochs, SPOWeights
from apportion.selection.mixed import mixed_probability
from apportion.selection.spo import inclusion_probabilities, systematic_sample
from apportion.types import Belief, Rollout
from tests.builders import finished, make_prompts


class Known(Predictor):
    """Believes Beta(strength p, strength (1 - p)) of ``make_prompts``' prompt q."""

    name = "known"

    def __init__(self, success, strength=1000.0):
        self.success, self.strength = success, strength

    def predict(self, prompts):
        return Belief.from_mean([self.success[int(prompt.text.split()[1])] for prompt in prompts], self.strength)

    def update(self, batch):
        """Do nothing."""

    def _settings(self):
        return {}


def prepared(selector, count, seed=0):
    selector.prepare(make_prompts(count), seed)
    return selector


def show(selector, means, group=100):
    """Let ``selector`` observe a group with each of these mean rewards, {place: mean}."""
    prompts = [make_prompts(max(means) + 1)[q] for q in means]
    rollouts = [
        [Rollout(reward=1.0)] * round(m * group) + [Rollout(reward=0.0)] * round((1 - m) * group)
        for m in means.values()
    ]
    selector.observe(finished(prompts, rollouts))


@given(st.floats(0.05, 20), st.floats(0.05, 20), st.integers(2, 12))
def test_the_chance_of_a_mixed_group_is_that_of_the_beta_binomial(a, b, n):
    expected = 1 - betabinom.pmf(0, n, a, b) - betabinom.pmf(n, n, a, b)
    assert mixed_probability(Belief([a], [b]), n)[0] == pytest.approx(expected, abs=1e-9)


def test_the_chance_of_a_mixed_group_at_certainty_and_at_a_point():
    belief = Belief([0.0, 1.0, 3e8, 1.0], [1.0, 0.0, 7e8, 1.0])
    assert mixed_probability(belief, 4) == pytest.approx([0, 0, 1 - 0.3**4 - 0.7**4, 1 - 2 / 5])


@pytest.mark.parametrize("rule", [Mixed, LargestVariance, MoPPS])
def test_it_takes_prompts_that_are_neither_hopeless_nor_solved(rule):
    success = [0.0, 0.5, 0.99, 0.4, 1.0, 0.45, 0.01, 0.0]
    own = {} if rule is MoPPS else {"explore": 0.0}
    selector = prepared(rule(predictor=Known(success, 1e5), **own), 8)
    for _ in range(10):
        rows = selector.choose(3)
        assert sorted(rows) == [1, 3, 5]
        show(selector, dict.fromkeys(rows, 0.5))


def test_exploration_deals_its_places_to_those_not_chosen_the_longest():
    """Every prompt is chosen again within Q / (explore x count) steps, whatever is believed."""
    selector = prepared(Mixed(predictor=Known([0.5] * 20 + [0.0] * 80), explore=0.1), 100)
    chosen = []
    for _ in range(150):
        rows = selector.choose(20)
        show(selector, dict.fromkeys(rows, 0.5))
        chosen.append(set(rows))
    waits = {q: np.diff([-1, *(t for t, rows in enumerate(chosen) if q in rows), 150]).max() for q in range(100)}
    assert max(waits.values()) <= 50 and selector.metrics()["never_chosen"] == 0
    assert np.mean([len(rows & set(range(20))) for rows in chosen]) >= 18


def test_thompson_draws_explore_what_is_uncertain():
    success, strength = np.array([0.9] * 20), np.array([10.0] * 10 + [2000.0] * 10)
    hits = np.zeros(20)
    for seed in range(200):
        hits[prepared(MoPPS(predictor=Known(success, strength)), 20, seed).choose(4)] += 1
    assert hits[:10].sum() > 0.8 * hits.sum()


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=30), st.data())
def test_inclusion_probabilities_are_proportional_below_one_and_sum_to_the_count(weights, data):
    weights = np.array(weights)
    count = data.draw(st.integers(1, len(weights)))
    found = inclusion_probabilities(weights, count)
    assert found.sum() == pytest.approx(count) and (found > 0).all() and (found <= 1).all()
    below = found < 1 - 1e-9
    assert np.ptp(found[below] / weights[below]) < 1e-9 if below.any() else True
    if below.any() and (~below).any():
        assert (weights[~below] >= weights[below].max() * (1 - 1e-9)).all()


class Last:
    """A generator whose draw is the largest below 1, so that sums round up to the end of the last place."""

    def permutation(self, size):
        return np.arange(size)

    def random(self):
        return np.nextafter(1.0, 0.0)


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_the_last_draw_of_a_systematic_sample_is_a_place(count):
    found = systematic_sample(np.full(2 * count, 0.5), Last())
    assert len(set(found.tolist())) == count and found.max() == 2 * count - 1


def test_spo_draws_by_its_weights_and_its_importance_weights_undo_that():
    """The weighted mean over the chosen prompts has the expectation of the plain mean over all prompts."""
    success, values = np.array([0.0, 0.1, 0.5, 0.5, 0.9, 1.0]), np.array([9.0, 2.0, -1.0, 4.0, 3.0, 7.0])
    prompts, means, taken = make_prompts(6), [], np.zeros(6)
    selector = prepared(SPOWeights(predictor=Known(success, 1e6), importance_weights=True), 6)
    for _ in range(3000):
        rows = selector.choose(3)
        taken[rows] += 1
        means.append((selector.weights([prompts[row] for row in rows]) * values[rows]).mean())
        show(selector, dict.fromkeys(rows, 0.5))
    expected = inclusion_probabilities(np.sqrt(success * (1 - success)) + 0.05, 3)
    assert taken / 3000 == pytest.approx(expected, abs=0.03)
    assert np.mean(means) == pytest.approx(values.mean(), abs=4 * np.std(means) / np.sqrt(len(means)))


def test_each_epoch_visits_every_prompt_once_in_another_order():
    selector = prepared(ShuffledEpochs(), 10)
    first, second = ([row for _ in range(5) for row in selector.choose(2)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_a_mastered_prompt_retires_and_is_tested_again():
    selector = prepared(Retire(threshold=0.9, retest_after=20), 10)
    seen = []
    for _ in range(60):
        rows = selector.choose(2)
        seen.append(rows)
        show(selector, {row: 0.95 if row < 5 else 0.5 for row in rows})
    visits = [t for t, rows in enumerate(seen) if 0 in rows]
    assert len(visits) > 1 and min(np.diff(visits)) >= 20
    assert selector.metrics()["retired"] > 0
    forever = prepared(Retire(threshold=0.9, retest_after=None), 10)
    for _ in range(60):
        rows = forever.choose(2)
        show(forever, {row: 0.95 if row < 5 else 0.5 for row in rows})
    assert forever.metrics()["retired"] == 0.5 and set(forever.choose(5)) == set(range(5, 10))
    assert len(forever.choose(10)) == 10  # the retired ones fill a batch that needs them


@pytest.mark.parametrize("count", [1, 16])
def test_a_rest_has_an_effect_at_every_number_of_prompts_a_choice(count):
    """100 choices are shorter than an epoch of 150 prompts at few prompts a choice; four turns are lost in any case."""
    selector, hopeless, chosen = prepared(Retire(hopeless=0.0), 150), 0, 0
    for _ in range(1500 // count):
        rows = selector.choose(count)
        hopeless, chosen = hopeless + sum(row < 75 for row in rows), chosen + count
        show(selector, {row: 0.0 if row < 75 else 0.5 for row in rows})
    assert hopeless / chosen < 0.25


def test_greso_skips_by_the_number_of_useless_visits_and_moves_p_towards_its_targets():
    selector = prepared(GRESO(start=0.5, move=0.01), 30)
    show(selector, dict.fromkeys(range(10), 1.0) | dict.fromkeys(range(10, 20), 0.5))
    assert (selector.metrics()["keep_easy"], selector.metrics()["keep_hard"]) == pytest.approx((0.49, 0.51))
    show(selector, dict.fromkeys(range(10), 0.0))
    assert (selector.metrics()["keep_easy"], selector.metrics()["keep_hard"]) == pytest.approx((0.50, 0.50))
    assert selector._visits[:, 0].tolist() == [0, 1] and selector._visits[:, 10].tolist() == [0, 0]
    for _ in range(3):
        show(selector, dict.fromkeys(range(10), 0.11))
    p = selector.metrics()["keep_hard"]
    assert selector._probabilities()[0] == pytest.approx(p**4)
    for _ in range(60):
        show(selector, dict.fromkeys(range(10), 0.0))
    assert selector._probabilities()[0] == 0.01 and selector.metrics()["keep_hard"] == 0.05


def test_prompts_of_greso_are_kept_as_often_as_it_says_and_weighted_by_that():
    success = dict.fromkeys(range(20), 0.0) | dict.fromkeys(range(20, 40), 0.5)
    kept = np.zeros(40)
    prompts = make_prompts(40)
    for seed in range(400):
        selector = prepared(GRESO(move=0.0, importance_weights=True), 40, seed)
        show(selector, success)
        rows = selector.choose(8)
        kept[rows] += 1
        expected = [1.5 if row < 20 else 0.75 for row in rows]
        assert selector.weights([prompts[row] for row in rows]) == pytest.approx(expected)
    assert kept[:20].sum() / kept[20:].sum() == pytest.approx(0.5, abs=0.06)


def test_a_data_set_that_is_all_useless_still_gives_a_batch():
    selector = prepared(GRESO(least=1e-9, move=0.0), 12)
    for _ in range(40):
        show(selector, dict.fromkeys(range(12), 0.0))
    assert len(set(selector.choose(12))) == 12


def test_a_hopeless_prompt_rests_as_a_mastered_one_if_asked():
    for hopeless, rests in ((None, 5), (0.0, 7), (0.1, 9)):
        selector = prepared(Retire(hopeless=hopeless), 10)
        show(selector, {row: [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.1, 0.1, 0.5][row] for row in range(10)})
        assert selector.metrics()["retired"] == rests / 10


def test_importance_weights_are_unbiased_while_a_batch_waits_for_its_outcome():
    prompts, total = make_prompts(40), np.zeros(40)
    selector = prepared(SPOWeights(predictor=Known([0.5] * 4 + [0.001] * 36), importance_weights=True), 40)
    ahead = selector.choose(8)
    for _ in range(3000):
        rows, ahead = ahead, selector.choose(8)
        total[rows] += selector.weights([prompts[row] for row in rows])
        show(selector, dict.fromkeys(rows, 0.5))
    assert total[:4].mean() / total.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("count", "explore", "places"), [(1, 0.1, 10), (3, 0.25, 75)])
def test_a_fraction_of_a_place_is_carried_to_the_next_choice(count, explore, places):
    selector = prepared(Mixed(predictor=Known([0.5] * 8 + [0.0] * 92), explore=explore), 100)
    chosen = []
    for _ in range(100):
        chosen += (rows := selector.choose(count))
        show(selector, dict.fromkeys(rows, 0.5))
    assert sum(row > 7 for row in chosen) == places


def test_a_verdict_counts_before_the_reward():
    """Rewards may have a part for the format, or be -1 and 1."""
    for selector in (prepared(Retire(), 2), prepared(GRESO(), 2)):
        wrong, right = Rollout(False, reward=1.0), Rollout(True, reward=-1.0)
        selector.observe(finished(make_prompts(2), [[wrong, wrong], [right, right]]))
        if isinstance(selector, Retire):
            assert selector.metrics()["retired"] == 0.5 and selector._retired[1] >= 0
        else:
            assert selector._visits.tolist() == [[0, 1], [1, 0]]
