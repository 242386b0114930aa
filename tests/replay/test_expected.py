"""Expected gains of allocations at smoothed rates: the windows, and cases whose answer is known."""

import numpy as np
import pytest

from apportion import Belief
from apportion.records.reading import record_of_visits
from apportion.replay.expected import hora, near_rates, near_truth, vip


def test_the_window_is_cut_at_the_ends_and_can_leave_its_centre_out():
    shares = np.arange(12.0)[None]
    assert near_truth(shares, 0) == [2.0] and near_truth(shares, 6) == [5.5] and near_truth(shares, 11) == [8.5]
    assert near_truth(shares, 0, without=True) == [2.5]


@pytest.mark.parametrize("without", [False, True])
def test_rates_near_each_group_are_those_near_each_visit(without):
    counts = np.random.default_rng(0).integers(9, size=(7, 13))
    record = record_of_visits(counts, 8, [str(q) for q in range(7)])
    found = near_rates(record, without=without)
    for visit in range(13):
        np.testing.assert_allclose(found[record.visit == visit], near_truth(counts / 8, visit, without=without))


def test_prompts_with_fewer_visits_have_windows_of_their_own():
    record = record_of_visits([[0, 8], [4], [8, 2, 2]], 8, ["a", "b", "c"])
    np.testing.assert_allclose(near_rates(record), [0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(near_rates(record, without=True), [1, np.nan, 0.25, 0, 0.625, 0.625])


def test_vip_and_hora_gain_nothing_where_all_prompts_are_alike():
    same = np.full(16, 0.3)
    assert vip(same * (1 - same), same) == pytest.approx((4 * 0.21 / 7 * 16,) * 2)
    hits = hora(Belief.from_mean(same, 1e9), np.full(16, 2), same)
    assert hits[0] == pytest.approx(hits[1]) == pytest.approx(16 * (1 - 0.7**8))
