"""How long to wait before a request is sent again.

The wait is what the server asks for with Retry-After-Ms or Retry-After, if that is at most two minutes. Without either,
it is 0.5 s, doubling to at most 8 s, less up to a quarter at random, so that requests do not come back all at once.
"""

import math
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz
from random import Random

FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
LONGEST_ASKED = 120.0
"""Seconds that a server may ask for. If it asks for more, the request fails."""


def backoff_seconds(retry: int, random: Random) -> float:
    """Return the wait before the retry with this number, from 0.

    >>> 0.375 <= backoff_seconds(0, Random()) <= 0.5, 6 <= backoff_seconds(10**6, Random()) <= 8
    (True, True)
    """
    return min(FIRST_WAIT * 2.0 ** min(retry, 10), LONGEST_WAIT) * random.uniform(0.75, 1.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait for, at least 0; None if it does not ask, or not in numbers.

    >>> retry_after({"retry-after-ms": "250"}), retry_after({"retry-after": "3"}), retry_after({"retry-after": "soon"})
    (0.25, 3.0, None)
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return None if math.isnan(seconds) else max(seconds, 0.0)
    date = parsedate_tz(headers.get("retry-after", ""))
    try:
        return None if date is None else max(mktime_tz(date) - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None
