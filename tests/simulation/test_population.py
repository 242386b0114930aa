from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import scipy

from apportion.predictors.statistics.beta_binomial import logit
from apportion.records import open_run
from apportion.simulation import SHAPES, BetaMixture, Population, draw_outcomes, fit_mixture

RUN = Path(__file__).parents[2] / "examples" / "data" / "grpo_run.jsonl.gz"
SMALLEST_P = 0.01


@pytest.mark.parametrize("shape", SHAPES)
def test_success_is_distributed_as_its_mixture(shape):
    p = Population(prompts=20_000, shape=SHAPES[shape], seed=1).start
    assert scipy.stats.kstest(p, SHAPES[shape].cdf).pvalue > SMALLEST_P
    other = SHAPES["easy" if shape == "hard" else "hard"]
    assert scipy.stats.kstest(p, other.cdf).pvalue < 1e-6


def test_the_shape_of_the_run_is_fitted_to_its_first_visits_only():
    record = open_run(RUN)
    first = record.visit == 0
    fitted = fit_mixture(record.totals[first].astype(np.int64), record.trials[first])
    assert np.allclose(fitted.weights, SHAPES["like-the-run"].weights, atol=2e-4)
    assert np.array_equal(fitted.alpha, SHAPES["like-the-run"].alpha)
    assert Population.like(record, prompts=5).shape == fitted


def test_a_fit_recovers_a_mixture_from_counts():
    generator = np.random.default_rng(0)
    trials = np.full(10_000, 8)
    fitted = fit_mixture(generator.binomial(8, SHAPES["bimodal"].draw(10_000, generator)), trials)
    grid = np.linspace(0, 1, 21)
    assert np.abs(fitted.cdf(grid) - SHAPES["bimodal"].cdf(grid)).max() < 0.05
    ends = fit_mixture(np.array([0, 8] * 50), np.full(100, 8))  # symmetric, so its components are, too
    assert ends.alpha.tolist() == ends.beta[::-1].tolist() and ends.mean == pytest.approx(0.5)


def test_drift_returns_with_its_half_life():
    population = Population(prompts=2_000, shape=BetaMixture.single(0.5, 50.0), drift=0.2, half_life=5.0)
    x = np.stack([logit(p) for p in islice(population.walk(), 120)]) - logit(population.start)
    late = x[60:]  # by then the deviations are stationary
    for lag in (1, 5, 10):
        found = (late[lag:] * late[:-lag]).mean() / (late**2).mean()
        assert found == pytest.approx(2 ** (-lag / 5.0), abs=0.02)
    kept = 2 ** (-1 / 5.0)
    assert late.std() == pytest.approx(0.2 / np.sqrt(1 - kept**2), rel=0.02)


def test_without_a_half_life_the_variance_grows_with_the_steps():
    population = Population(prompts=5_000, shape=BetaMixture.single(0.5, 50.0), drift=0.1, trend=0.05)
    x = np.stack([logit(p) for p in islice(population.walk(), 41)]) - logit(population.start)
    assert x[[10, 40]].mean(axis=1) == pytest.approx([0.5, 2.0], abs=0.02)
    assert x[[10, 40]].var(axis=1) == pytest.approx([0.1, 0.4], rel=0.06)


def test_without_drift_nothing_moves():
    population = Population(prompts=10)
    first, *_, last = islice(population.walk(), 5)
    assert np.array_equal(first, last)


@pytest.mark.parametrize("signal", [0.0, 0.1, 1.0])
def test_embeddings_tell_as_much_as_their_signal(signal):
    population = Population(prompts=20_000, embedding_size=8, embedding_signal=signal)
    assert population.embedding_correlation == pytest.approx(np.sqrt(signal / (1 + signal)), abs=0.02)


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.765])
def test_known_rates_have_the_correlation_and_the_lead_that_were_asked_for(correlation):
    population = Population(prompts=20_000, rate_correlation=correlation, rate_shift=1.5)
    assert population.achieved_rate_correlation == pytest.approx(correlation, abs=0.02)
    assert population.rates is not None
    lead = logit(population.rates).mean() - logit(population.start).mean()
    assert lead == pytest.approx(1.5, abs=0.06)
    far = Population(prompts=10, rate_correlation=correlation, rate_shift=100.0)
    assert far.rates is not None and far.rates.max() < 1 and np.isfinite(far.achieved_rate_correlation)


def test_the_verifier_errs_as_often_as_it_should():
    population = Population(prompts=200_000, false_positive=0.1, false_negative=0.3, failures=0.05, wrong_longer=2.0)
    places = np.arange(200_000)
    found = draw_outcomes(population, population.start, 0, places, np.zeros_like(places))
    assert found.reward[~found.right].mean() == pytest.approx(0.1, abs=0.004)
    assert (~found.reward[found.right]).mean() == pytest.approx(0.3, abs=0.006)
    assert found.failed.mean() == pytest.approx(0.05, abs=0.003)
    assert found.right.mean() == pytest.approx(population.start.mean(), abs=0.005)
    lengths = np.log(found.tokens)
    assert np.median(found.tokens[found.right]) == pytest.approx(300, rel=0.02)
    assert lengths[~found.right].mean() - lengths[found.right].mean() == pytest.approx(np.log(2), abs=0.01)
    assert lengths[found.right].std() == pytest.approx(np.hypot(0.5, 0.3), rel=0.02)


def test_rollouts_are_independent_between_prompts_steps_and_numbers():
    population = Population(prompts=20_000, shape=SHAPES["uniform"])
    places, half = np.arange(20_000), np.full(20_000, 0.5)
    rewards = np.stack(
        [
            draw_outcomes(population, half, step, places, np.full_like(places, index)).reward
            for step in (0, 1)
            for index in (0, 1)
        ]
    )
    assert np.abs(np.corrcoef(rewards) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(rewards[0, 1:], rewards[0, :-1])[0, 1]) < 0.03


def test_weights_of_a_mixture_must_sum_to_one():
    with pytest.raises(ValueError, match=r"weights must be at least 0 with sum 1, got \[0.5, 0.6\] with sum 1.1"):
        BetaMixture(np.array([0.5, 0.6]), np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match="alpha must be finite and above 0"):
        BetaMixture(np.ones(1), np.zeros(1), np.ones(1))


def test_graded_runs_have_no_success_probabilities():
    record = open_run(RUN)
    with pytest.raises(ValueError, match="needs rewards of 0 and 1"):
        Population.like(replace(record, reward=record.reward / 2))
