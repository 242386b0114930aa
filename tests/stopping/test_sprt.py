from itertools import product

import numpy as np
import pytest
from scipy import integrate, stats

from apportion.stopping import MSPRT, SPRT, count_votes


def ratio(rule, first, second):
    return float(rule.log_likelihood_ratio(np.array(first), np.array(second)))


@pytest.mark.parametrize("p1", [0.5001, 0.7])
def test_the_ratio_is_one_of_binomial_likelihoods(p1):
    for first, second in product(range(12), repeat=2):
        n = first + second
        expected = stats.binom.logpmf(first, n, p1) - stats.binom.logpmf(first, n, 0.5)
        assert ratio(SPRT(p1), first, second) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("prior", [(1.0, 1.0), (40.0, 40.0)])
@pytest.mark.parametrize("votes", [(0, 0), (12, 4), (40, 24)])
def test_the_mixture_is_the_mean_over_the_truncated_prior(prior, votes):
    a, b = prior
    first, second = votes
    mean, _ = integrate.quad(
        lambda p: stats.beta.pdf(p, a, b) * (2 * p) ** first * (2 * (1 - p)) ** second, 0.5, 1, epsrel=1e-11
    )
    expected = np.log(mean / stats.beta.sf(0.5, a, b))
    assert ratio(MSPRT(a, b), first, second) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("votes", [(1, 0), (30, 27), (64, 0)])
def test_the_mixture_keeps_its_digits_at_a_sharp_prior(votes):
    """p is 1/2 + |z| / sqrt(8 a) with z standard normal, to one part in a: a second way at a prior of a million."""
    first, second = votes
    z, weight = np.polynomial.legendre.leggauss(200)
    z, weight = 6 * (z + 1), 6 * weight * np.sqrt(2 / np.pi)
    excess = 2 * z / np.sqrt(8e6)
    grown = np.expm1(first * np.log1p(excess) + second * np.log1p(-excess))
    expected = np.log1p((weight * np.exp(-(z**2) / 2) * grown).sum())
    assert ratio(MSPRT(), first, second) == pytest.approx(expected, rel=1e-5, abs=1e-11)


@pytest.mark.parametrize("rule", [SPRT(), MSPRT()])
def test_the_defaults_stop_three_votes_ahead(rule):
    votes = np.array([(first, second) for first in range(65) for second in range(first + 1) if first + second <= 64])
    enough = rule.enough(votes, votes.sum(axis=-1), 64)
    assert np.array_equal(enough, votes[:, 0] - votes[:, 1] >= 3)


@pytest.mark.parametrize(("rule", "votes"), [(SPRT(), 632), (MSPRT(), 127), (SPRT(0.7, 0.1, 0.2), 9)], ids=repr)
def test_the_lower_boundary_ends_a_tie(rule, votes):
    """Wald's B = beta / (1 - alpha): at a tie the SPRT's ratio is (4 p1 (1 - p1)) ** votes."""
    ties = np.repeat(np.arange(1, votes + 1)[:, None], 2, axis=-1)
    assert rule.enough(ties, ties.sum(axis=-1), 2000).tolist() == [False] * (votes - 1) + [True]
    assert rule.log_likelihood_ratio(ties[-1, 0], ties[-1, 1]) <= np.log(rule.beta / (1 - rule.alpha))


def shortest(rule, first, second, most):
    """Return the smallest number of further votes that ends the test, over all splits between leader and runner-up."""
    for more in range(1, most + 1):
        pairs = np.array([(first + a, second + b) for a in range(more + 1) for b in range(more + 1 - a)])
        pairs = np.sort(pairs, axis=-1)[:, ::-1]
        if rule.enough(pairs, pairs.sum(axis=-1), 999).any():
            return more
    return most


@pytest.mark.parametrize(
    "rule",
    [
        SPRT(),
        SPRT(p1=0.6, alpha=0.3, beta=0.65),
        SPRT(p1=0.6, alpha=0.01, beta=0.9),
        MSPRT(2.0, 1.0, alpha=0.05, beta=0.3),
    ],
    ids=repr,
)
def test_the_earliest_is_the_shortest_way_to_either_boundary(rule):
    for first, second in product(range(9), repeat=2):
        if first < second or rule.enough(np.array([first, second]), np.array(0), 30):
            continue
        codes = np.repeat([0, 1], [first, second])
        left = 30 - first - second
        assert rule.earliest(count_votes(codes, 2), 30) == shortest(rule, first, second, left), (first, second)
