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


def rbf_blocks(
    x: NDArray[Any], rows: NDArray[np.int64], centres: NDArray[Any], bandwidth: float
) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield row numbers [R] and K(x[those rows], centres) [R, B] in blocks of ``rows``.

    K(a, b) = exp(-|a - b|^2 / (2 h^2)), where h is the bandwidth. ``x`` is [Q, d] and ``centres`` [B, d], B at least 1,
    of any float type. The arithmetic is float64, because weights of either sign and up to 1 / noise cancel in sums over
    K. Coordinates are relative to the mean of the centres, which keeps the digits of small distances.

    >>> x = np.array([[0.0], [1.0]])
    >>> [(rows.tolist(), k.round(3).tolist()) for rows, k in rbf_blocks(x, np.arange(2), x[:1], bandwidth=1.0)]
    [([0, 1], [[1.0], [0.607]])]
    """
    origin = centres.mean(axis=0, dtype=np.float64)
    b = (centres - origin) / bandwidth
    step = max(1, BLOCK_CELLS // sum(centres.shape))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        yield some, np.exp(-0.5 * _squared_distances((x[some] - origin) / bandwidth, b))


def median_distance(x: NDArray[Any]) -> float:
    """Return the median distance over pairs of rows of ``x`` [n, d]; 1.0 if there is no pair or the median is 0.

    The distance is Euclidean. Takes O(n^2) time and memory.

    >>> median_distance(np.array([[0.0], [3.0], [8.0]])), median_distance(np.zeros((3, 1)))
    (5.0, 1.0)
    """
    centred = x - x.mean(axis=0, dtype=np.float64)
    pairs = np.sqrt(_squared_distances(centred, centred)[np.triu_indices(len(x), k=1)])
    return float(np.median(pairs)) or 1.0 if pairs.size else 1.0


def _squared_distances(a: Floats, b: Floats) -> Floats:
    """Return |a - b|^2, [A, B], of rows ``a`` [A, d] and ``b`` [B, d]; rounding leaves none below 0."""
    lengths_a, lengths_b = (np.einsum("nd,nd->n", each, each) for each in (a, b))
    return np.maximum(lengths_a[:, None] + lengths_b - a @ (2 * b).T, 0.0)
