"""Overtaking probabilities against exact rational sums over all outcomes."""

from fractions import Fraction
from functools import cache
from math import comb, prod

import numpy as np
import pytest

from apportion.stopping import overtaking as module
from apportion.stopping.overtaking import ANSWERS, EXTRA, FEW, HYPOTHESES, OPEN, TOTAL, Overtaking, overtaking

M = 10
EXACT_TOTAL = [Fraction(float(total)) for total in TOTAL]
CASES = [(t, v, j) for t in range(1, M + 1) for v in range(1, t + 1) for j in range(min(v, t - v) + 1)]


def rising(start, steps):
    return prod((start + i for i in range(steps)), start=Fraction(1))


def summed(t, leader, rival, extra, total):
    """P(rival + X_rival >= leader + X_leader) over all (X_leader, X_rival) of a Dirichlet-multinomial draw."""
    left, mine, theirs = M - t, Fraction(leader + extra), Fraction(rival + extra)
    rest = t + total - mine - theirs
    chance = Fraction(0)
    for x in range(left + 1):
        for y in range(max(0, leader + x - rival), left - x + 1):
            ways = comb(left, x) * comb(left - x, y)
            chance += ways * rising(mine, x) * rising(theirs, y) * rising(rest, left - x - y)
    return chance / rising(t + total, left)


@cache
def expected_new(left, leader, others, new, concentration):
    """Return the expected number of new answers that reach the leader in ``left`` samples, over all sequences."""
    if not left:
        return Fraction(len([votes for votes in new if votes >= leader]))
    total = leader + others + sum(new) + concentration
    mean = Fraction(leader) / total * expected_new(left - 1, leader + 1, others, new, concentration)
    mean += Fraction(others) / total * expected_new(left - 1, leader, others + 1, new, concentration)
    for place, votes in enumerate(new):
        longer = tuple(sorted((*new[:place], votes + 1, *new[place + 1 :])))
        mean += Fraction(votes) / total * expected_new(left - 1, leader, others, longer, concentration)
    first = tuple(sorted((*new, 1)))
    return mean + concentration / total * expected_new(left - 1, leader, others, first, concentration)


@pytest.mark.parametrize("place", [0, 6, len(OPEN), HYPOTHESES - 1])
def test_every_probability_of_a_rival_is_the_exact_sum(place):
    cases = [case for case in CASES if case[2] or ANSWERS[place]]
    t, leader, rival = (np.array(column) for column in zip(*cases, strict=True))
    exact = [float(summed(*case, int(EXTRA[place]), EXACT_TOTAL[place])) for case in cases]
    assert overtaking(M).probabilities(t, leader, rival)[:, place] == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("place", [0, 6])
def test_unseen_open_answers_count_by_the_expected_number_that_overtake(place):
    cases = [(t, v) for t, v, j in CASES if not j]
    t, leader = (np.array(column) for column in zip(*cases, strict=True))
    exact = [float(expected_new(M - t, v, t - v, (), EXACT_TOTAL[place])) for t, v in cases]
    assert overtaking(M).probabilities(t, leader, np.zeros_like(t))[:, place] == pytest.approx(exact, abs=1e-12)


def likelihood(place, partition):
    """Return the probability of one stream with these votes, by running the process step by step."""
    seen, chance, extra, answers = [], Fraction(1), int(EXTRA[place]), int(ANSWERS[place])
    for label, votes in enumerate(partition):
        for _ in range(votes):
            if label == len(seen):
                seen.append(0)
                weight = (answers - label) * extra if answers else EXACT_TOTAL[place]
            else:
                weight = seen[label] + extra
            chance *= max(Fraction(weight), 0) / (sum(seen) + EXACT_TOTAL[place])
            seen[label] += 1
    return chance


@pytest.mark.parametrize("votes", [(7,), (4, 1, 1), (1,) * 9])
def test_hypotheses_are_weighed_by_the_probability_of_the_stream(votes):
    prior = [Fraction(1, 2 * len(OPEN))] * len(OPEN) + [Fraction(1, 2 * len(FEW))] * len(FEW)
    joint = [share * likelihood(place, votes) for place, share in enumerate(prior)]
    weights = overtaking(M).weights(np.array([[*votes, 0]]), np.array([sum(votes)]))[0]
    assert weights == pytest.approx([float(each / sum(joint)) for each in joint], abs=1e-13)


def test_whole_tables_change_nothing(monkeypatch):
    t = np.array([5, 3, 5, 9, 5])
    leader, rival = np.array([3, 2, 4, 5, 3]), np.array([1, 0, 0, 4, 1])
    monkeypatch.setattr(module, "WHOLE", 0)
    alone = Overtaking(M).probabilities(t, leader, rival)
    assert alone.tolist() == overtaking(M).probabilities(t, leader, rival).tolist()
