"""Expected gains of allocations at smoothed rates: the windows, and cases whose answer is known."""

import numpy as np
import pytest

from apportion import Belief
from benchmarks.expected import hora, vip


def test_vip_and_hora_gain_nothing_where_all_prompts_are_alike():
    same = np.full(16, 0.3)
    assert vip(same * (1 - same), same) == pytest.approx((4 * 0.21 / 7 * 16,) * 2)
    hits = hora(Belief.from_mean(same, 1e9), np.full(16, 2), same)
    assert hits[0] == pytest.approx(hits[1]) == pytest.approx(16 * (1 - 0.7**8))
