"""Expected gains of allocations at smoothed rates: the windows, and cases whose answer is known."""

import numpy as np
import pytest

from apportion import Belief
from benchmarks.expected import hora, near_truth, vip


def test_the_window_is_cut_at_the_ends_and_can_leave_its_centre_out():
    shares = np.arange(12.0)[None]
    assert near_truth(shares, 0) == [2.0] and near_truth(shares, 6) == [5.5] and near_truth(shares, 11) == [8.5]
    assert near_truth(shares, 0, without=True) == [2.5]


def test_vip_and_hora_gain_nothing_where_all_prompts_are_alike():
    same = np.full(16, 0.3)
    assert vip(same * (1 - same), same) == pytest.approx((4 * 0.21 / 7 * 16,) * 2)
    hits = hora(Belief.from_mean(same, 1e9), np.full(16, 2), same)
    assert hits[0] == pytest.approx(hits[1]) == pytest.approx(16 * (1 - 0.7**8))
