import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from apportion.predictors.kernels.rbf import BLOCK_CELLS, median_distance, rbf_blocks


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 0.0), (np.float64, 1000.0)])
def test_blocks_are_the_kernel_of_exact_distances(dtype, offset):
    rng = np.random.default_rng(0)
    x = (offset + rng.normal(size=(70_000, 7))).astype(dtype)
    rows, centres = rng.permutation(70_000)[:60_000], x[:31]
    exact = np.exp(-cdist(x[rows].astype(np.float64), centres.astype(np.float64), "sqeuclidean") / (2 * 1.7**2))
    seen = []
    for some, k in rbf_blocks(x, rows, centres, 1.7):
        assert k.shape == (len(some), 31)
        assert len(some) * (7 + 31) <= BLOCK_CELLS < 60_000 * (7 + 31)
        np.testing.assert_allclose(k, exact[len(seen) : len(seen) + len(some)], atol=1e-12)
        seen += some.tolist()
    assert seen == rows.tolist()


def test_no_rows_give_no_blocks():
    assert list(rbf_blocks(np.ones((3, 2)), np.arange(0), np.ones((1, 2)), 1.0)) == []


@pytest.mark.parametrize("n", [2, 3, 301])
def test_the_median_is_over_all_pairs(n):
    x = np.random.default_rng(n).normal(size=(n, 3))
    assert median_distance(x) == pytest.approx(np.median(pdist(x)))


def test_the_median_of_one_row_is_one():
    assert median_distance(np.ones((1, 4))) == 1.0
