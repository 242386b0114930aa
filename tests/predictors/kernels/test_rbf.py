import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from apportion.predictors.kernels.rbf import BLOCK_CELLS, median_distance, rbf_blocks


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 0.0), (np.float64, 1000.0)])
def test_blocks_are_the_kernel_of_exact_distances(dtype, offset):
    rng = np.random.default_rng(0)
    x = (offset + rng.normal(size=(70_000, 7))).astype(dtype)
    centres = x[:31]
    exact = np.exp(-cdist(x.astype(np.float64), centres.astype(np.float64), "sqeuclidean") / (2 * 1.7**2))
    blocks = list(rbf_blocks(x, centres, 1.7))
    assert len(blocks) > 1 and max(len(block) for block in blocks) * (7 + 31) <= BLOCK_CELLS
    np.testing.assert_allclose(np.concatenate(blocks), exact, atol=1e-12)


def test_no_rows_give_no_blocks():
    assert list(rbf_blocks(np.ones((0, 2)), np.ones((1, 2)), 1.0)) == []


@pytest.mark.parametrize("n", [2, 3, 301])
def test_the_median_is_over_all_pairs(n):
    x = np.random.default_rng(n).normal(size=(n, 3))
    assert median_distance(x) == pytest.approx(np.median(pdist(x)))


def test_the_median_of_one_row_is_one():
    assert median_distance(np.ones((1, 4))) == 1.0
