import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.predictors.statistics.beta_binomial import logit
from apportion.predictors.statistics.pooled import EDGE, NODES, PooledSums


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 9)), min_size=1, max_size=9), st.floats(0.2, 3))
def test_pooled_sums_are_a_kernel_average_of_the_added_values(seen, bandwidth):
    sums = PooledSums(2, 1.0, bandwidth, pool_discount=0.5)
    for p, value in seen:
        sums.add({"a": [1.0, value]}, [p])
    p, values = np.array(seen).T
    nodes, place = np.linspace(-EDGE, EDGE, NODES), np.clip(logit(np.clip(p, 1e-9, 1 - 1e-9)), -EDGE, EDGE)
    near = nodes[np.abs(nodes - place[:, None]).argmin(axis=1)]
    weights = 0.5 ** np.arange(len(p))[::-1] * np.exp(-0.5 * ((near - logit(0.3)) / bandwidth) ** 2)
    count, total = sums.at([0.3])[0]
    assert count > 0 and total / count == pytest.approx(np.average(values, weights=weights), rel=0.05)


def test_pooled_sums_keep_the_level_of_the_outermost_data():
    sums = PooledSums(2, 1.0, 1.0, pool_discount=1.0)
    sums.add({"a": [5, 10.0], "b": [2, 12.0]}, [0.4, 0.7])
    count, total = sums.at([1e-12, 0.0, 1.0]).T
    assert (total / count)[0] == (total / count)[1] == pytest.approx(2, rel=0.02)
    assert (total / count)[2] == pytest.approx(6, rel=0.02)
