"""Audited questions: the threshold against a naive search, and the guarantee by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.stopping import Calibrated, audited_threshold, decide
from apportion.stopping.audited import smallest_losing_threshold
from tests.soak import case

M = 12
STREAM = st.lists(st.sampled_from(["a", "a", "b", "c", None]), min_size=M, max_size=M)
GRID = np.append(0.0, np.geomspace(1e-4, 1.0, 200))


def disagrees(stream, threshold, wave=1):
    return decide(stream, Calibrated(threshold=threshold), M, wave=wave).answer != decide(stream, "fixed", M).answer


def naive_losses(streams):
    """Return the loss [thresholds, Q] of each threshold of the grid or any smaller one, by replaying every one."""
    full = np.array(decide(streams, "fixed", M).answer)
    found = [np.array(decide(streams, Calibrated(threshold=t), M).answer) != full for t in GRID]
    return np.logical_or.accumulate(found, axis=0)


def draw(rng, questions, concentration=1.5):
    shares = rng.dirichlet(np.full(3, concentration), size=questions)
    return [rng.choice(list("abc"), size=M, p=row).tolist() for row in shares]


@given(STREAM, st.sampled_from([1, 2, 5]))
@settings(max_examples=20, deadline=None)
def test_the_smallest_losing_threshold_is_that_of_replays(stream, wave):
    smallest = smallest_losing_threshold(stream, M, wave)
    for threshold in GRID[::20]:
        if disagrees(stream, threshold, wave):
            assert smallest <= threshold
    if smallest <= 1:
        assert disagrees(stream, smallest, wave)
        assert not disagrees(stream, np.nextafter(smallest, 0), wave)


@pytest.mark.parametrize("eps", [0.1, 0.3])
def test_the_threshold_is_the_largest_of_a_naive_search(eps):
    rng = np.random.default_rng(0)
    for questions in (19, 40):
        streams = draw(rng, questions)
        losses = naive_losses(streams).sum(axis=1)
        last = np.flatnonzero((losses + 1) / (questions + 1) <= eps)[-1]
        audit = audited_threshold(streams, eps, M)
        assert GRID[last] <= audit.rule.threshold
        assert last == len(GRID) - 1 or audit.rule.threshold < GRID[last + 1]
        assert losses[last] <= audit.disagreement * questions + 1e-9
        assert audit.bound == pytest.approx((questions * audit.disagreement + 1) / (questions + 1))
        assert audit.bound <= eps


@pytest.mark.parametrize("orders", [case(1, suite=False), case(4, suite=True)])
def test_the_guarantee_holds_on_average_over_draws_of_the_audited_questions(orders):
    """1,500 questions are split 120 times into 40 audited ones and others; the mean disagreement is at most eps."""
    rng, eps = np.random.default_rng(1), 0.1
    pool = draw(rng, 1500)
    losing = np.array([smallest_losing_threshold(stream, M) for stream in pool])
    found = []
    for _ in range(120 // orders):
        audited = rng.choice(len(pool), size=40, replace=False)
        threshold = audited_threshold([pool[q] for q in audited], eps, M, orders=orders).rule.threshold
        found.append(np.delete(losing <= threshold, audited).mean())
    mean, error = np.mean(found), np.std(found) / np.sqrt(len(found))
    assert mean <= eps + 2 * error
    assert mean >= eps / 3, "the threshold is not far too small"


def test_a_stream_may_end_when_no_other_answer_can_win():
    rng = np.random.default_rng(2)
    streams = draw(rng, 30)
    ends = decide(streams, "curtailment", M).samples
    cut = [stream[:end] for stream, end in zip(streams, ends, strict=True)]
    assert min(ends) < M
    assert audited_threshold(cut, 0.1, M) == audited_threshold(streams, 0.1, M)


def test_streams_without_any_answer_lose_nothing():
    assert audited_threshold([[None] * M] * 20, 0.05, M).rule.threshold == 1.0
    assert audited_threshold([["a"] * M] * 99, 0.01, M).bound == pytest.approx(0.01), "99 are enough for one in 100"
