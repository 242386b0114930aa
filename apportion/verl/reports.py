"""The values that a worker reports to the coordinator. The coordinator holds one open Ray call per worker for them.

A call returns all that came since the last one, so many results share its cost of about a millisecond. It returns after
``BEAT_SECONDS`` at the latest, with nothing if there is nothing: that is the worker's sign of life. The worker answers
in a thread of its own, also while it computes. So one without signs is stopped, or its host or network is.
"""

import pickle
import queue
from collections.abc import Sequence
from typing import Any

BEAT_SECONDS = 2.0
"""The longest time, in seconds, that a call waits for something to report."""

GROUP = "reports"
"""The concurrency group of the call, which gives it a thread of its own."""


class Outbox:
    """Values on their way to the coordinator. They are put in the event loop of the worker, and taken in a thread."""

    def __init__(self) -> None:
        self._values: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, value: Any) -> None:
        """Have the next call return ``value``. Raises what pickling it raises."""
        self._values.put(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def take(self) -> list[bytes]:
        """Return all values that were put and not taken. Wait for one, but at most ``BEAT_SECONDS``."""
        found: list[bytes] = []
        try:
            found.append(self._values.get(timeout=BEAT_SECONDS))
            while True:
                found.append(self._values.get_nowait())
        except queue.Empty:
            return found


def opened(values: Sequence[bytes]) -> list[Any]:
    """Return the returned bytes as values. They are copies, so Ray's object store can free its memory."""
    return [pickle.loads(value) for value in values]
