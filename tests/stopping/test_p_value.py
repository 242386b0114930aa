from itertools import product

import numpy as np
import pytest
from scipy import stats

from apportion.stopping import PValue, decide


def test_the_p_value_is_of_the_one_sided_binomial_test():
    for first, second in product(range(40), repeat=2):
        if first + second:
            expected = stats.binomtest(first, first + second, alternative="greater").pvalue
            assert PValue.p_value(np.array(first), np.array(second)) == pytest.approx(expected, rel=1e-9)


def test_without_votes_nothing_is_significant():
    assert PValue.p_value(np.array(0), np.array(0)) == 1
    assert decide([None] * 8, "p_value", 8).samples == 8
