"""Axes: round ticks, positions of values on the page, and numbers as short texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.types import Floats


@dataclass(frozen=True)
class Scale:
    """A linear map of values from ``low`` to ``high`` onto places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def of(self, values: Floats | float) -> Any:
        """Return the position of a value, or the positions of ``values``.

        Values beyond the scale are at its nearer end.
        """
        return np.interp(values, (self.low, self.high), (self.start, self.end))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from ``low`` to ``high``, at most ``most``, at steps of 1, 2 or 5 times a power of 10.

    >>> ticks(0, 1, 6), ticks(0, 512000, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 200000.0, 400000.0])
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(size * power for size in (1, 2, 5, 10) if (high - low) / (size * power) < most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def span(values: Floats, from_zero: bool = False) -> tuple[float, float]:
    """Return a range that holds all finite ``values`` with a little room. It begins at 0 if they are not far from it.

    >>> span(np.array([0.2, 0.8])), span(np.array([3.0, 3.0])), span(np.array([np.nan]))
    ((0.0, 0.83), (2.5, 3.5), (0.0, 1.0))
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    differ = high - low > 1e-9 * max(abs(high), 1e-3)
    room = 0.05 * (high - low) if differ else max(abs(high) / 6, 0.01)
    near_zero = low >= 0 and (from_zero or low < 0.4 * high)
    return (0.0 if near_zero else low - room, round(high + room, 12))


def short(value: float) -> str:
    """Return a number in a few letters.

    >>> short(0), short(0.25), short(1500), short(200000), short(2.5e6), short(1e9)
    ('0', '0.25', '1.5k', '200k', '2.5M', '1G')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.3g}"


def short_percent(value: float) -> str:
    """Return a share as a percentage in a few letters.

    >>> short_percent(0.25), short_percent(0.005), short_percent(1)
    ('25%', '0.5%', '100%')
    """
    return f"{round(100 * value, 6):.4g}%"
