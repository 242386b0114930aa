"""Overtaking probabilities against exact rational sums over everything that can happen."""

from fractions import Fraction
from math import comb, prod

import numpy as np
import pytest

from apportion.stopping import overtaking as module
from apportion.stopping.overtaking import CONCENTRATIONS, Overtaking, overtaking

M = 11
EXACT = [Fraction(float(a)) for a in CONCENTRATIONS]


def rising(start, steps):
    return prod((start + i for i in range(steps)), start=Fraction(1))


def summed(t, leader, rival, concentration):
    """P(rival + X_rival >= leader + X_leader) over all (X_leader, X_rival) of a Dirichlet-multinomial draw."""
    left, weight = M - t, Fraction(rival) if rival else concentration
    rest = t + concentration - leader - weight
    total = Fraction(0)
    for x in range(left + 1):
        for y in range(max(0, leader + x - rival), left - x + 1):
            ways = comb(left, x) * comb(left - x, y)
            total += ways * rising(Fraction(leader), x) * rising(weight, y) * rising(rest, left - x - y)
    return total / rising(t + concentration, left)


CASES = [(t, v, j) for t in range(1, M + 1) for v in range(1, t + 1) for j in range(min(v, t - v) + 1)]


def test_every_probability_up_to_eleven_samples_is_the_exact_sum():
    t, leader, rival = (np.array(column) for column in zip(*CASES, strict=True))
    odds = overtaking(M).odds(t, leader, rival)
    for place in (0, 4, 8, 12):
        exact = [float(summed(*case, EXACT[place])) for case in CASES]
        assert odds[:, place] == pytest.approx(exact, abs=1e-12)


def test_concentrations_are_weighed_by_the_probability_of_the_stream():
    """Of a stream whose j-th sample is new or not, the process itself gives the likelihood, step by step."""
    new = [True, False, True, False, False, True, False]
    likelihoods = []
    for a in EXACT:
        steps = [(a if fresh else seen) / (seen + a) for seen, fresh in enumerate(new)]
        likelihoods.append(float(prod(steps)))
    weights = overtaking(M).concentrations(np.array([7]), np.array([3]))[0]
    assert weights == pytest.approx(np.array(likelihoods) / sum(likelihoods))


def test_what_is_kept_changes_nothing(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 0)
    forgetful, t = Overtaking(M), np.array([5, 3, 5, 9, 5])
    leader, rival = np.array([3, 2, 4, 5, 3]), np.array([1, 0, 0, 4, 1])
    for _ in range(2):
        once = forgetful.odds(t, leader, rival)
        assert once.tolist() == overtaking(M).odds(t, leader, rival).tolist()
        assert once[1:2].tolist() == forgetful.odds(t[1:2], leader[1:2], rival[1:2]).tolist()


def test_nothing_overtakes_when_no_sample_is_left_but_a_tie_stands():
    odds = overtaking(4).odds(np.array([4, 4, 4]), np.array([3, 2, 4]), np.array([1, 2, 0]))
    assert odds[:, 0].tolist() == [0.0, 1.0, 0.0]
