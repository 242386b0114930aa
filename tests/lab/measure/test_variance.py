import numpy as np
import pytest
import torch

from apportion import HORA, Group, collect
from apportion.lab.measure.hits import expected_hits, expected_hits_under
from apportion.lab.measure.moments import Moments, least_variance, score_moments
from apportion.lab.measure.variance import compare, measure_variances, ratio_interval
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.loss import surrogate_loss, training_rows
from apportion.lab.world.task import problem_pool
from apportion.types import Prompt, Rollout


def measure_one(policy, problems, counts, **settings):
    return measure_variances(policy, problems, [counts], **settings)[0]


@pytest.fixture(scope="module")
def uncertain(trained_base):
    """Return six problems that the small base sometimes solves."""
    pool = problem_pool(120, seed=5)
    success = exact_success(trained_base, pool)
    return [problem for problem, p in zip(pool, success, strict=True) if 0.1 < p < 0.9][:6]


def backward(policy, prompts, rollouts, estimator):
    """Return the gradient of one batch as the trainer computes it."""
    groups = [
        Group(prompt, tuple(group), np.ones(len(group), bool)) for prompt, group in zip(prompts, rollouts, strict=True)
    ]
    policy.zero_grad(set_to_none=True)
    surrogate_loss(policy, training_rows(groups, estimator)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).double().numpy()


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_it_is_the_variance_of_the_trainers_gradient_on_the_same_rollouts(small_base, uncertain, estimator):
    counts, draws, prompts = np.array([5, 3]), 6, [problem.prompt() for problem in uncertain[:2]]
    rollouts = LedgerSampler(small_base, seed=3)(prompts, counts * draws)
    shares = np.zeros((2, draws, small_base.num_parameters()))
    for draw in range(draws):
        batch = [group[draw * n : (draw + 1) * n] for group, n in zip(rollouts, counts, strict=True)]
        for q in range(2):
            alone = [
                batch[q] if q == other else [Rollout(False, completion=batch[other][0].completion)] * counts[other]
                for other in range(2)
            ]
            shares[q, draw] = backward(small_base, prompts, alone, estimator)
    expected = shares.var(axis=1, ddof=1).sum(axis=1)
    measured = measure_one(small_base, uncertain[:2], counts, draws=draws, seed=3, estimator=estimator)
    np.testing.assert_allclose(measured.per_prompt, expected, rtol=1e-3)
    assert measured.trace_variance == pytest.approx(sum(expected), rel=1e-3)


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_one_prompt_has_the_variance_of_its_u_statistic(small_base, uncertain, estimator):
    """The RLOO gradient is a U-statistic with the kernel (r - r')(h - h') / 2, so Hoeffding gives its variance."""
    problem, n, draws = uncertain[0], 5, 300
    moments = score_moments(small_base, [problem], wrong_rollouts=500)
    p, right, wrong = moments.success[0], moments.right[0], moments.wrong[0]
    first = (p * (1 - p) ** 2 * right + (1 - p) * p**2 * wrong - p * p * right) / 4
    second = p * (1 - p) * (right + wrong) / 2
    expected = 2 / (n * (n - 1)) * (2 * (n - 2) * first + second)
    if estimator == "dr_grpo":
        expected *= ((n - 1) / n) ** 2
    assert moments.variance([n], estimator)[0] == pytest.approx(expected)
    measured = measure_one(small_base, [problem], [n], draws=draws, seed=2, estimator=estimator)
    assert abs(measured.trace_variance - expected) < 3.5 * measured.standard_error
    assert measured.standard_error < expected / 5


def test_least_variance_is_the_best_of_all_allocations():
    right, wrong = np.array([2.0, 1.0, 0.1]), np.array([2.5, 4.0, 60.0])
    moments = Moments(np.array([0.2, 0.5, 0.95]), right, wrong, np.zeros(3), right_mean=right)
    found = least_variance(moments, 15, low=2, high=9)
    every = [(a, b, 15 - a - b) for a in range(2, 10) for b in range(2, 10) if 2 <= 15 - a - b <= 9]
    best = min(every, key=lambda counts: moments.variance(counts).sum())
    assert tuple(found) == best
    with pytest.raises(ValueError, match="low must be at least 2"):
        least_variance(moments, 15, low=1, high=9)


def test_the_error_is_the_jackknife_and_the_bootstrap_counts_draws(small_base, uncertain):
    measured = measure_one(small_base, uncertain, np.full(6, 4), draws=8)
    n, products = 8, measured.products

    def variance(chosen):
        part = products[np.ix_(chosen, chosen)]
        return (np.trace(part) - part.sum() / len(chosen)) / (len(chosen) - 1)

    left_out = np.array([variance(np.delete(np.arange(n), draw)) for draw in range(n)])
    assert measured.standard_error == pytest.approx(np.sqrt((n - 1) * left_out.var()))
    chosen = np.array([0, 0, 1, 3, 3, 3, 6, 7])
    times = np.bincount(chosen, minlength=n)
    assert measured.resampled(np.stack([np.ones(n, int), times])) == pytest.approx(
        [measured.trace_variance, variance(chosen)]
    )


def test_uniform_beside_itself_has_ratio_one(small_base, uncertain):
    same, again = measure_variances(small_base, uncertain, [np.full(6, 5), lambda rng: np.full(6, 5)], draws=10)
    assert ratio_interval(again, same) == pytest.approx((1.0, 1.0))
    other, fresh = (measure_one(small_base, uncertain, np.full(6, 5), draws=100, seed=seed) for seed in (9, 10))
    low, high = ratio_interval(other, fresh)
    assert low < 1 < high


def test_prompts_without_rollouts_or_variance_add_nothing(small_base, uncertain):
    measured = measure_one(small_base, uncertain[:3], [4, 0, 1], draws=5)
    assert (measured.per_prompt[1:] == 0).all() and measured.per_prompt[0] > 0
    silent = measure_one(small_base, uncertain[:2], [1, 1], draws=5)
    assert silent.trace_variance == silent.standard_error == 0
    assert np.isnan(ratio_interval(measured, silent)).all()


def test_compare_gives_every_rule_once_and_the_uniform_one_as_the_measure(small_base, uncertain):
    rows = {row.rule: row for row in compare(small_base, uncertain, rollouts_per_prompt=6, high=12, draws=8)}
    assert list(rows) == ["uniform", "vip, exact p", "vip, shuffled p", "hora"]
    assert rows["uniform"].ratio == rows["uniform"].formula_ratio == 1 and rows["uniform"].hits_gain == 0
    exact = rows["vip, exact p"]
    assert exact.formula_ratio <= 1 and exact.ratio_interval[0] < exact.ratio < exact.ratio_interval[1]
    assert rows["vip, shuffled p"].formula_ratio >= 1
    assert rows["hora"].ratio is None


def test_compare_on_dead_prompts_has_no_ratio(small_base):
    hopeless = [problem for problem in problem_pool(200, seed=8) if len(problem.operations) == 5][:2]
    rows = compare(small_base, hopeless, rollouts_per_prompt=3, draws=3)
    assert len(rows) == 4 and rows[0].trace_variance >= 0


def test_expected_hits_are_what_simulation_finds():
    success, counts, rng = np.array([0.05, 0.3, 0.9]), np.array([4, 0, 2]), np.random.default_rng(0)
    simulated = (rng.binomial(counts, success, (40_000, 3)) > 0).sum(1)
    exact = expected_hits(success, counts)
    assert exact.standard_error == 0
    assert exact.expected == pytest.approx(simulated.mean(), abs=4 * simulated.std() / 200)
    several = expected_hits(success, [counts, counts + 1])
    assert several.expected == pytest.approx((exact.expected + expected_hits(success, counts + 1).expected) / 2)


def test_expected_hits_of_hora_are_what_whole_batches_find():
    success, rng = np.array([0.02, 0.1, 0.1, 0.3, 0.6, 0.97]), np.random.default_rng(1)
    hora = HORA(pre_rollouts=3, rollouts_per_prompt=6, high=12)
    prompts = [Prompt(str(q)) for q in range(6)]

    def sample(prompts, counts):
        return [[Rollout(bool(c)) for c in rng.random(n) < p] for n, p in zip(counts, success, strict=True)]

    whole = np.array([(collect(hora, prompts, sample).successes > 0).sum() for _ in range(500)])
    hits = expected_hits_under(success, hora, draws=500, seed=2)
    assert abs(hits.expected - whole.mean()) < 3.5 * np.hypot(hits.standard_error, whole.std() / np.sqrt(500))
    assert 0 < hits.standard_error < whole.std() / np.sqrt(500)
    assert hits.gain(1.0) == hits.expected - 1 and hits.gain_interval(1.0)[0] < hits.gain(1.0)


def test_wrong_settings_are_refused(small_base, uncertain):
    with pytest.raises(ValueError, match="draws must be at least 3, for a variance and its error, got 2"):
        measure_one(small_base, uncertain, np.full(6, 4), draws=2)
    with pytest.raises(ValueError, match=r"counts must be \[6\].*got shape \(5,\)"):
        measure_one(small_base, uncertain, np.full(5, 4))
