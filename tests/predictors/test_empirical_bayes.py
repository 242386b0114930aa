"""Tests of the empirical Bayes predictor: what it adds to counts, and what it must never lose against them."""

import time
from dataclasses import replace

import numpy as np
import pytest

from apportion.baselines import Predicted
from apportion.predictors import EmpiricalBayes
from apportion.types import Prompt, Rollout
from tests.builders import finished
from tests.predictors.builders import embedder_of, embeddings, graded_batch, make_batch, make_prompts

ROLLOUTS = 8


def draw(rng, p, some, prompts):
    return make_batch([prompts[q] for q in some], rng.binomial(ROLLOUTS, p[some]).tolist(), [ROLLOUTS] * len(some))


def logistic(latent):
    return 1 / (1 + np.exp(-latent))


def test_known_rates_predict_before_the_first_update_and_are_mapped_to_the_policy_afterwards():
    rng = np.random.default_rng(3)
    rates = rng.random(300)
    p = logistic(np.log(rates / (1 - rates)) - 1.5)  # a weaker model
    prompts = make_prompts(300)
    predictor = EmpiricalBayes(rates={prompt.id: rate for prompt, rate in zip(prompts, rates, strict=True)})
    np.testing.assert_allclose(predictor.predict(prompts[:5]).mean, np.clip(rates[:5], 0.01, 0.99))
    predictor.update(draw(rng, p, np.arange(200), prompts))
    assert np.abs(predictor.predict(prompts[200:]).mean - p[200:]).mean() < 0.04


def rated(prompts, rates):
    return [Prompt(prompt.text, rate=rate) for prompt, rate in zip(prompts, rates, strict=True)]


def test_rates_of_prompts_count_as_those_of_a_mapping_which_go_before_them():
    prompts, known = make_prompts(60), {prompt.id: q / 60 for q, prompt in enumerate(make_prompts(60))}
    mixed = rated(prompts, [0.5 if q % 2 else q / 60 for q in range(60)])
    found = []
    for rates, given in ((known, prompts), ({p.id: known[p.id] for p in prompts[1::2]}, mixed)):
        predictor = EmpiricalBayes(rates=rates)
        before = predictor.predict(given)
        predictor.prepare(given)
        predictor.update(make_batch(prompts[:40], [q % 8 for q in range(40)], [8] * 40))
        found.append([before.alpha.tolist(), predictor.predict(prompts).alpha.tolist()])
    assert found[0] == found[1] and len(set(found[0][0])) > 30


def test_own_counts_are_discounted_at_each_visit():
    """Weights 0.5^2, 0.5 and 1, and a prior of the fitted strength and mean; the population does not drift."""
    prompts, predictor = make_prompts(2), EmpiricalBayes(discount=0.5)
    for successes in (8, 4, 0):
        predictor.update(make_batch(prompts[:1], [successes], [8]))
    belief, prior = predictor.predict(prompts[:1]), predictor._prior
    own, n = 8 * 0.25 + 4 * 0.5 + 0, 8 * (0.25 + 0.5 + 1)
    k, mean = 1 / prior.correlation - 1, prior.means(np.array([[1.0, 0, 0]]), np.array([own / n]), np.array([n]))[0]
    assert belief.alpha[0] == pytest.approx(k * mean + own)
    assert belief.beta[0] == pytest.approx(k * (1 - mean) + n - own)


def test_a_prompt_that_joins_late_gets_what_it_would_have_had_from_the_start():
    rng, prompts = np.random.default_rng(8), make_prompts(60)
    x = rng.normal(size=(60, 2))
    p = logistic(2 * x[:, 0])
    early, late = (EmpiricalBayes(embedder_of(prompts, x)) for _ in range(2))
    early.prepare(prompts[:40]), late.prepare(prompts[:40])
    early.predict(prompts), early.prepare(prompts)  # the others have no say in the axes
    for _ in range(3):
        batch = draw(rng, p, rng.choice(40, 20, replace=False), prompts)
        early.update(batch), late.update(batch)
    np.testing.assert_allclose(late.predict(prompts).mean, early.predict(prompts).mean, rtol=1e-6)
    assert np.corrcoef(late.predict(prompts[40:]).mean, p[40:])[0, 1] > 0.8


@pytest.mark.parametrize(
    ("discount", "first", "then"),
    [(0.0, [[1, 0, 0, 0, 0]], [[0, 0, 0]]), (0.9, [[3, 3]], [[], [-1.1]])],
    ids=["none right, the earlier forgotten", "a lower reward of another prompt"],
)
def test_a_mean_at_an_end_of_the_range_stays_there(discount, first, then):
    """It was below 0 or above 1 by a rounding, and the checkpoint was refused as damaged."""
    prompts, predictor = make_prompts(2), EmpiricalBayes(discount=discount)
    for rewards in (first, then):
        predictor.update(graded_batch(prompts[: len(rewards)], rewards))
    assert 0 < predictor.predict(prompts[:1]).mean[0] < 1
    EmpiricalBayes(discount=discount).load_state_dict(predictor.state_dict())


@pytest.mark.parametrize(("low", "high"), [(0.0, 40.0), (-7.0, -2.0)])
def test_graded_rewards_of_any_range_are_predicted_in_their_unit(low, high):
    rng, prompts = np.random.default_rng(11), make_prompts(100)
    level = rng.random(100)
    predictor = Predicted(EmpiricalBayes())
    for visit in range(9):
        some = np.flatnonzero(level < (0.3 if visit == 0 else 1))  # the range becomes known in two steps
        rewards = np.clip(level[some, None] + 0.1 * rng.normal(size=(len(some), 8)), 0, 1)
        predictor.update(graded_batch([prompts[q] for q in some], low + (high - low) * rewards))
    found = (predictor.predict(prompts) - low) / (high - low)
    assert np.corrcoef(found, level)[0, 1] > 0.98 and np.abs(found - level).mean() < 0.08
    variance = predictor.predictor.predict(prompts).variance
    assert np.median(variance) == pytest.approx((0.1 * (high - low)) ** 2, rel=1.0)


def test_verdicts_with_rewards_of_their_own_are_predicted_by_these():
    """A reward of -1 or 1 is twice a verdict less 1: the same mean, twice the spread."""
    rng, prompts = np.random.default_rng(13), make_prompts(50)
    plain, signed = EmpiricalBayes(), EmpiricalBayes()
    p = rng.random(50)
    for _ in range(3):
        right = rng.random((50, 6)) < p[:, None]
        for predictor, low in ((plain, 0.0), (signed, -1.0)):
            rollouts = [[Rollout(bool(verdict), reward=1.0 if verdict else low) for verdict in own] for own in right]
            predictor.update(finished(prompts, rollouts))
    np.testing.assert_allclose(signed.predict(prompts).mean, plain.predict(prompts).mean)
    np.testing.assert_allclose(signed.predict(prompts).variance, 4 * plain.predict(prompts).variance)
    np.testing.assert_allclose(signed.expected_rewards(prompts), 2 * plain.expected_rewards(prompts) - 1)


def seconds(prompts):
    """Return the least processor seconds of an update of 128, once all ``prompts`` have been seen."""
    rng, everything = np.random.default_rng(12), make_prompts(prompts)
    predictor = EmpiricalBayes(embedder_of(everything, embeddings(prompts, 96)))
    predictor.update(make_batch(everything, rng.integers(0, 3, prompts).tolist(), [2] * prompts))
    times = []
    for _ in range(5):
        batch = draw(rng, np.full(prompts, 0.5), rng.choice(prompts, 128, replace=False), everything)
        started = time.process_time()
        predictor.update(batch)
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.slow
def test_the_time_of_an_update_does_not_grow_with_the_number_of_prompts():
    assert seconds(30_000) < 4 * seconds(3_000)


def test_a_range_is_learned_from_the_first_batch_and_grows_by_its_width_from_then_on():
    prompts, predictor = make_prompts(3), EmpiricalBayes()
    for reward, high in ((50.0, 50.0), (400.0, 100.0), (400.0, 200.0), (400.0, 400.0)):
        predictor.update(graded_batch(prompts, [[0.0, reward]] * 3))
        assert predictor._range == (0.0, high)


@pytest.mark.parametrize("dead", [0, ROLLOUTS])
def test_three_batches_of_a_verifier_that_is_out_teach_nothing(dead):
    rng, prompts, predictor = np.random.default_rng(14), make_prompts(64), EmpiricalBayes()
    p = rng.beta(2, 2, 64)
    for _ in range(4):
        predictor.update(draw(rng, p, np.arange(64), prompts))
    before = predictor.predict(prompts)
    for _ in range(3):
        predictor.update(make_batch(prompts, [dead] * 64, [ROLLOUTS] * 64))
        np.testing.assert_array_equal(predictor.predict(prompts).mean, before.mean)
    predictor.update(make_batch(prompts, [dead] * 64, [ROLLOUTS] * 64))
    assert np.abs(predictor.predict(prompts).mean - before.mean).mean() > 0.2  # the fourth is believed


def test_prompts_that_may_well_fail_are_no_outage():
    prompts, predictor = make_prompts(20), EmpiricalBayes()
    predictor.update(make_batch(prompts, [1] + [0] * 19, [ROLLOUTS] * 20))
    before = predictor.predict(prompts[:1]).mean[0]
    predictor.update(make_batch(prompts, [0] * 20, [ROLLOUTS] * 20))
    assert predictor.predict(prompts[:1]).mean[0] < before


def test_a_jump_of_all_log_odds_is_seen_in_prompts_that_have_not_come_again():
    rng, prompts, predictor = np.random.default_rng(15), make_prompts(400), EmpiricalBayes()
    latent = rng.normal(-1, 1, 400)
    for _ in range(4):
        predictor.update(draw(rng, logistic(latent), np.arange(400), prompts))
    for some in np.split(np.arange(200), 5):
        predictor.update(draw(rng, logistic(latent + 2), some, prompts))
    others = predictor.predict(prompts[200:]).mean - logistic(latent + 2)[200:]
    assert abs(others.mean()) < 0.08 and np.abs(others).mean() < 0.12


def sorted_run(rated=()):
    """Return a predictor that has seen ten batches of fresh prompts of means from .1 to .55, in graded rewards."""
    rng, predictor = np.random.default_rng(5), EmpiricalBayes()
    prompts = [replace(p, rate=0.9 if q in rated else None) for q, p in enumerate(make_prompts(680))]
    for first in range(0, 640, 64):
        rewards = np.clip(0.1 + first / 1280 + 0.1 * rng.normal(size=(64, 8)), 0, 1)
        rewards[0, 0] = 1.0
        predictor.update(graded_batch(prompts[first : first + 64], rewards))
    return predictor, prompts[640:]


def test_a_known_rate_decides_about_a_fresh_prompt_and_the_latest_batch_about_others():
    """The data set is sorted by difficulty; the mean of all so far is .33."""
    predictor, fresh = sorted_run(rated=range(640, 660))
    known, others = predictor.predict(fresh).mean[:20], predictor.predict(fresh).mean[20:]
    assert np.abs(known - 0.9).max() < 0.01 and np.abs(others - 0.55).max() < 0.06


def test_rows_with_features_of_another_size_are_refused():
    prompts = make_prompts(5)
    predictor = EmpiricalBayes(embedder_of(prompts, embeddings(5, 3)))
    predictor.update(make_batch(prompts, [1, 2, 3, 4, 5], [8] * 5))
    state = predictor.state_dict()
    for change in ({"axes": None}, {"axes": state["axes"][:2]}, {"seen": state["seen"][:4]}):
        with pytest.raises(ValueError, match="must be"):
            EmpiricalBayes(predictor.embedder).load_state_dict(state | change)
