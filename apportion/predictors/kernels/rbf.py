"""The radial basis function kernel in blocks of rows, and the median heuristic for its bandwidth."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.types import Floats

BLOCK_CELLS = 2**20
"""Numbers in the rows of x and of K of a block: 8 MiB."""
MEDIAN_SAMPLE = 2048
SMALLEST_BANDWIDTH = float(np.finfo(np.float64).tiny)


def rbf_blocks(x: NDArray[Any], centres: NDArray[Any], bandwidth: float) -> Iterator[Floats]:
    """Yield K(x, centres) [Q, B] in blocks of rows.

    K(a, b) = exp(-|a - b|^2 / (2 h^2)), where h is the bandwidth. ``x`` is [Q, d] and ``centres`` [B, d], B at least 1,
    of any float type. The arithmetic is float64, because weights of either sign and up to 1 / noise cancel in sums over
    K. Coordinates are relative to the mean of the centres, which keeps the digits of small distances.

    >>> [k.round(3).tolist() for k in rbf_blocks(np.array([[0.0], [1.0]]), np.array([[0.0]]), bandwidth=1.0)]
    [[[1.0], [0.607]]]
    """
    origin = centres.mean(axis=0, dtype=np.float64)
    b = (centres - origin) / bandwidth
    step = max(1, BLOCK_CELLS // sum(centres.shape))
    for start in range(0, len(x), step):
        a = (x[start : start + step] - origin) / bandwidth
        lengths = np.einsum("rd,rd->r", a, a)[:, None] + np.einsum("bd,bd->b", b, b)
        yield np.exp(np.minimum(a @ b.T - 0.5 * lengths, 0.0))  # rounding can leave more than 0


def median_distance(x: NDArray[Any]) -> float:
    """Return the median distance over pairs of rows of ``x`` [n, d]; 1.0 if there is no pair or the median is 0.

    The distance is Euclidean. Takes O(n^2) time and memory.

    >>> median_distance(np.array([[0.0], [3.0], [8.0]])), median_distance(np.zeros((3, 1)))
    (5.0, 1.0)
    """
    from scipy.spatial.distance import pdist  # noqa: PLC0415 - slow to import

    return float(np.median(pdist(x))) or 1.0 if len(x) > 1 else 1.0
