"""Decide when a server that answers nothing is to blame, and not the prompts that it was sent.

A server is suspected if its last attempts all failed, at least ``FEWEST`` of them and for some time:

- ``FIRST_SECONDS`` if it never answered, because then it is dead or the URL is wrong. Late replies do not count here,
  because a server that still loads its model is silent.
- ``LATER_SECONDS`` otherwise, because a server that answered before may come back. Late replies count here.

An answer ends the suspicion. So does a sign that the server is up and busy: 429, or an error with Retry-After or about
loading a model. An attempt that was sent before the first of the failures and is still in flight may yet be answered,
so a server is not suspected while there is one.

The caller then sends a plain prompt. If that fails too, the server is dead, and the run ends. If it is answered, only
the prompts that were sent fail, and the suspicion starts again.
"""

import time
from dataclasses import dataclass, field
from typing import Literal

FEWEST = 4
"""Least number of consecutive failures before a server is suspected."""

FIRST_SECONDS = 2.0
"""How long a server must have failed that never answered. The fourth attempt of one request comes 2.6 to 3.5 s after
the first."""

LATER_SECONDS = 60.0
"""How long a server must have failed that answered before."""

Outcome = Literal["answered", "busy", "failed", "late", "unknown"]
"""How an attempt ended. "unknown" says nothing about the server: its content was refused, or it was cancelled."""


@dataclass(eq=False)
class Health:
    """The attempts since the last sign of life.

    ``answered`` says whether any attempt was answered. ``failed`` and ``late`` count those in a row that were not;
    ``since`` is the time of the first of them on the monotonic clock.
    """

    answered: bool = False
    failed: int = 0
    late: int = 0
    since: float = 0.0
    _sent: dict[object, float] = field(default_factory=dict, init=False, repr=False)

    def start(self) -> object:
        """Note that an attempt is sent, and return the token with which its outcome is given."""
        token = object()
        self._sent[token] = time.monotonic()
        return token

    def end(self, token: object, outcome: Outcome) -> None:
        """Note how an attempt ended."""
        del self._sent[token]
        if outcome in ("answered", "busy"):
            self.failed = self.late = 0
            self.answered |= outcome == "answered"
        elif outcome in ("failed", "late"):
            self.since = self.since if self.failures else time.monotonic()
            self.failed += outcome == "failed"
            self.late += outcome == "late"

    @property
    def failures(self) -> int:
        """Number of attempts in a row that were not answered."""
        return self.failed + self.late

    @property
    def failing_seconds(self) -> float:
        """Seconds since the first of the failures in a row."""
        return time.monotonic() - self.since if self.failures else 0.0

    @property
    def is_suspect(self) -> bool:
        """Whether a plain prompt should be sent."""
        never = not self.answered and self.failed >= FEWEST and self.failing_seconds >= FIRST_SECONDS
        longer = self.failures >= FEWEST and self.failing_seconds >= LATER_SECONDS
        return (never or longer) and not any(sent < self.since for sent in self._sent.values())
