import time
from fractions import Fraction
from itertools import product
from math import comb, factorial

import numpy as np
import pytest
from adaptive_consistency import BetaStoppingCriteria
from scipy import integrate, stats

from apportion.stopping import AdaptiveConsistencyBeta, AdaptiveConsistencyDirichlet, count_votes, encode_answers
from apportion.stopping.adaptive_consistency import beta_confidence, dirichlet_confidence

FEW = ("1 1 1", "2 1 1", "3 2 1 1", "9 4 2", "22 21 21", "40 20 4", "60 1 1 1 1", "12 5 5 3 1 1")
COUNTS = [*(tuple(map(int, row.split())) for row in FEW), (1,) * 20, (4,) + (1,) * 14]


def exact(counts):
    """P(X_1 > X_j for all j) of Gamma(n_j + 1): the product of 1 - exp(-x) sum_i x^i / i!, multiplied out."""
    lead, *rivals = sorted((int(n) for n in counts), reverse=True)
    terms = {(0, 0): Fraction(1)}  # (s, i) to the coefficient of exp(-s x) x^i
    for n in rivals:
        expanded = dict(terms)
        for (s, i), c in terms.items():
            for k in range(n + 1):
                expanded[s + 1, i + k] = expanded.get((s + 1, i + k), 0) - c / factorial(k)
        terms = expanded
    integrals = (c * Fraction(factorial(i + lead), (s + 1) ** (i + lead + 1)) for (s, i), c in terms.items())
    return float(sum(integrals) / factorial(lead))


def votes_of(stream):
    answers, codes = encode_answers(stream)
    return count_votes(codes, len(answers))


def random_streams(many, length, answers, seed=0):
    codes = np.random.default_rng(seed).integers(0, answers, (many, length))
    return [[str(code) for code in row] for row in codes]


# Against the exact value


def test_beta_confidence_is_a_binomial_tail():
    for first, second in product(range(25), repeat=2):
        n = first + second + 1
        tail = Fraction(sum(comb(n, k) for k in range(second + 1, n + 1)), 2**n)
        assert beta_confidence(np.array(first), np.array(second)) == pytest.approx(float(tail), rel=1e-12)


@pytest.mark.parametrize("counts", COUNTS)
def test_dirichlet_confidence_is_exact_in_any_order(counts):
    votes = np.random.default_rng(0).permutation([*counts, 0])
    assert (
        dirichlet_confidence(votes) == dirichlet_confidence(np.array(counts)) == pytest.approx(exact(counts), abs=1e-12)
    )


@pytest.mark.parametrize("counts", [(1000, 990, 500, 500), (3000, 2990, 2980)])
def test_dirichlet_confidence_is_the_integral_where_there_are_many_votes(counts):
    shapes = np.array(counts) + 1.0
    low, high = stats.gamma.ppf([1e-15, 1 - 1e-15], shapes[0])
    integral, _ = integrate.quad(
        lambda x: stats.gamma.pdf(x, shapes[0]) * np.prod(stats.gamma.cdf(x, shapes[1:])), low, high, epsabs=1e-13
    )
    assert dirichlet_confidence(np.array(counts)) == pytest.approx(integral, abs=1e-11)


# Against the authors' package


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_beta_rule_decides_as_the_package_on_streams(confidence):
    theirs = BetaStoppingCriteria(confidence)
    short = [[str(code) for code in codes] for codes in product(range(3), repeat=6)]
    for stream in short[::3] + random_streams(10, 40, 4) + random_streams(5, 40, 2):
        expected = [theirs.should_stop(stream[:taken])["stop"] for taken in range(1, len(stream) + 1)]
        stops = AdaptiveConsistencyBeta(confidence).stops(votes_of(stream), 64)
        assert stops.tolist() == expected


# The rules


@pytest.mark.parametrize("top", [3, 5, None])
def test_the_dirichlet_rule_stops_where_the_probability_is_reached(top):
    votes = count_votes(np.random.default_rng(0).integers(-1, 7, (50, 40)), 7)
    votes[..., 0] += np.arange(40) // 4
    expected = dirichlet_confidence(votes, top) >= 0.8
    assert expected.any() and not expected.all()
    assert np.array_equal(AdaptiveConsistencyDirichlet(0.8, top).stops(votes, 64), expected)


@pytest.mark.slow
def test_ten_thousand_streams_of_64_with_50_answers_take_seconds():
    rng = np.random.default_rng(0)
    chosen = rng.dirichlet(np.full(50, 0.1), 10_000).cumsum(axis=1)
    codes = (rng.random((10_000, 64, 1)) > chosen[:, None]).sum(axis=-1)
    votes = count_votes(codes, 50)
    started = time.process_time()
    AdaptiveConsistencyDirichlet().stops(votes, 64)
    assert time.process_time() - started < 6  # about 1 on one idle core
