"""The policy of failures, for ``vote`` and ``serve``: what is sent again, after which wait, and for how long.

A server that says that it is busy (408, 409, 429, 529, 503 with Retry-After, or an error about loading a model) is
waited for, up to ``BUSY_SECONDS``, because waiting costs no sample. Other failures are sent again ``max_retries``
times, unless the server asks for a longer wait than that. With ``max_retries`` 0 nothing is sent again.

The wait is what the server asks for, in Retry-After-Ms, in Retry-After or in words ("try again in 40s"). Without any it
is 0.5 s, doubling to at most 8 s and to 30 s while the server is busy, less up to a quarter at random, so that requests
do not come back all at once.
"""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from random import uniform
from types import MappingProxyType
from typing import Any

from apportion.endpoint.completion import Fault

FIRST_WAIT, LONGEST_WAIT, LONGEST_BUSY_WAIT = 0.5, 8.0, 30.0
BUSY_SECONDS = 600.0
"""How long one request waits in all for a busy server."""

NO_CREDIT = "insufficient_quota"
"""OpenAI's code in a 429 for missing credit, which no wait ends. Proxies quote it in their message."""

_ASKED = re.compile(
    r"(?:try|retry)(?: again)? (?:in|after) (?:(?P<minutes>\d+)m ?)?(?P<number>\d+(?:\.\d+)?) ?(?P<unit>ms|milli|s|m)",
    re.IGNORECASE,
)
_LOADING = re.compile(r"\bloading\b|\bstarting\b|\bwarming\b|\boverloaded\b", re.IGNORECASE)
_UNITS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0}


@dataclass
class Patience:
    """How often one request has been sent again, and how long it has waited for a busy server."""

    max_retries: int
    retries: int = 0
    _waits: int = 0
    _busy_since: float | None = None

    def pause(self, fault: Fault) -> float | None:
        """Return the seconds to wait before the request is sent again after ``fault``; None if it is given up.

        >>> patience = Patience(max_retries=1)
        >>> [patience.pause(Fault("is busy", busy=True, wait=wait)) for wait in (40, 3600)], patience.retries
        ([40, None], 0)
        >>> 0.375 <= patience.pause(Fault("failed")) <= 0.5, patience.pause(Fault("failed"))
        (True, None)
        >>> Patience(max_retries=1).pause(Fault("failed", wait=86400.0)) is None
        True
        """
        if not fault.again:
            return None
        if fault.busy and self.max_retries:
            now = time.monotonic()
            self._busy_since = self._busy_since or now
            self._waits += 1
            wait = fault.wait or backoff_seconds(self._waits, LONGEST_BUSY_WAIT)
            return wait if now - self._busy_since + wait <= BUSY_SECONDS else None
        self.retries += 1
        if self.retries > self.max_retries or (fault.wait or 0.0) > BUSY_SECONDS:
            return None
        return fault.wait or backoff_seconds(self.retries, LONGEST_WAIT)


def backoff_seconds(retry: int, longest: float) -> float:
    """Return the wait before the retry with this number, from 1, of at most ``longest`` seconds.

    >>> 0.375 <= backoff_seconds(1, 8.0) <= 0.5, 6 <= backoff_seconds(10**6, 8.0) <= 8
    (True, True)
    """
    return min(FIRST_WAIT * 2.0 ** min(retry - 1, 10), longest) * uniform(0.75, 1.0)


def asked_wait(status: int, headers: Mapping[str, str], said: str) -> tuple[bool, float | None]:
    """Return whether an error reply says that the server is busy, and how many seconds it asks to wait.

    >>> asked_wait(429, {}, "Rate limit reached. Please try again in 40s."), asked_wait(503, {}, "Loading model")
    ((True, 40.0), (True, None))
    >>> asked_wait(429, {}, "Retry after 20 milliseconds"), asked_wait(429, {}, "Please try again in 1m26.4s.")
    ((True, 0.02), (True, 86.4))
    >>> asked_wait(500, {}, "out of memory"), asked_wait(500, {"retry-after": "3"}, "")
    ((False, None), (False, 3.0))
    """
    wait = retry_after(headers)
    if wait is None and (found := _ASKED.search(said)):
        wait = 60.0 * int(found["minutes"] or 0) + float(found["number"]) * _UNITS[found["unit"].lower()]
    busy = status in (408, 409, 429, 529) or (status == 503 and wait is not None) or _LOADING.search(said) is not None
    return busy, wait


def error_fault(
    status: int, said: str, error: str, headers: Mapping[str, str] = MappingProxyType({}), sent: Any = None
) -> Fault:
    """Return the fault of a reply with an ``error`` text.

    ``said`` is shown to a user, and ``sent`` is passed on to a client.
    """
    busy, wait = asked_wait(status, headers, said)
    unpaid = status == 429 and NO_CREDIT in error
    again = may_pass(status) and headers.get("x-should-retry") != "false" and not unpaid
    return Fault(said, again=again, busy=busy, wait=wait, status=status, sent=sent)


def may_pass(status: int) -> bool:
    """Return whether a request that was answered with this status may be answered otherwise later.

    >>> may_pass(429), may_pass(500), may_pass(401), may_pass(302)
    (True, True, False, False)
    """
    return status in (408, 409, 429) or status >= 500


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
