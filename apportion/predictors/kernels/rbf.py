"""The radial basis function kernel in blocks of rows, and the median heuristic for its bandwidth."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.types import Floats

BLOCK = 2048
MEDIAN_SAMPLE = 2048
SMALLEST_BANDWIDTH = float(np.finfo(np.float64).tiny)


def rbf_blocks(
    x: NDArray[Any], rows: NDArray[np.int64], centres: NDArray[Any], bandwidth: float
) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield row numbers [R] and K(x[those rows], centres) [R, B] in blocks of at most 2048 of ``rows``.

    K(a, b) = exp(-|a - b|^2 / (2 h^2)), where h is the bandwidth. ``x`` is [Q, d] and ``centres`` [B, d], B at least 1,
    of any float type. The arithmetic is float64, because weights of either sign and up to 1 / noise cancel in sums over
    K. Each block overwrites the one before, so use it before taking the next.

    The exponent a.b/h^2 - |a|^2/(2h^2) - |b|^2/(2h^2) is one matrix product, with the norms appended as columns.
    Coordinates are relative to the mean of the centres, which keeps the digits of small distances.

    >>> x = np.array([[0.0], [1.0]])
    >>> [(rows.tolist(), k.round(3).tolist()) for rows, k in rbf_blocks(x, np.arange(2), x[:1], bandwidth=1.0)]
    [([0, 1], [[1.0], [0.607]])]
    """
    dimensions, origin = x.shape[1], centres.mean(axis=0, dtype=np.float64)
    right = np.empty((dimensions + 2, len(centres)))
    right[:dimensions] = ((centres - origin) / bandwidth).T
    right[dimensions] = 1.0
    right[dimensions + 1] = -0.5 * np.einsum("db,db->b", right[:dimensions], right[:dimensions])
    right[:dimensions] /= bandwidth

    left = np.ones((min(BLOCK, len(rows)), dimensions + 2))
    kernel = np.empty((len(left), len(centres)))
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        a, k = left[: len(some)], kernel[: len(some)]
        shifted = np.subtract(x[some], origin, out=a[:, :dimensions])
        a[:, dimensions] = np.einsum("rd,rd->r", shifted, shifted) * (-0.5 / bandwidth**2)
        np.matmul(a, right, out=k)
        yield some, np.exp(np.minimum(k, 0.0, out=k), out=k)  # rounding can leave more than 0 at a tiny bandwidth


def median_distance(x: NDArray[Any]) -> float:
    """Return the median distance over pairs of rows of ``x`` [n, d]; 1.0 if there is no pair or the median is 0.

    The distance is Euclidean. Takes O(n^2) time and memory.

    >>> median_distance(np.array([[0.0], [3.0], [8.0]])), median_distance(np.zeros((3, 1)))
    (5.0, 1.0)
    """
    centred = x - x.mean(axis=0, dtype=np.float64)
    norms = np.einsum("nd,nd->n", centred, centred)
    squares = norms[:, None] + norms - 2 * centred @ centred.T
    pairs = np.sqrt(np.maximum(squares[np.triu_indices(len(x), k=1)], 0.0))
    return float(np.median(pairs)) or 1.0 if pairs.size else 1.0
