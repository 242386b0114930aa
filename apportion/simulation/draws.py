"""Random numbers by key: the same key gives the same number, in any order of requests and in any rule's simulation.

So two rules that sample rollout 3 of the same prompt at the same step get the same outcome, and their differences are
paired. The numbers are a hash of the key, computed for whole arrays at once.

Reference: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (SplitMix64).
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from apportion.types import Floats

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(*key: ArrayLike) -> Floats:
    """Return numbers in (0, 1), one for each key. A key is whole numbers of at least 0; arrays are broadcast.

    >>> bool(uniforms(1, [2, 3])[0] == uniforms(1, 2))
    True
    """
    mixed = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        for part in key:
            mixed = _mix(mixed ^ (np.asarray(part, np.uint64) * GAMMA + GAMMA))
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(*key: ArrayLike) -> Floats:
    """Return standard normal numbers, one for each key, as ``uniforms`` does."""
    return np.asarray(scipy.special.ndtri(uniforms(*key)))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the state after SplitMix64's finaliser, elementwise."""
    state = state + GAMMA
    state = (state ^ (state >> np.uint64(30))) * FIRST
    state = (state ^ (state >> np.uint64(27))) * SECOND
    return state ^ (state >> np.uint64(31))
