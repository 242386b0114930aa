"""An event loop in a thread of the trainer's process, in which the coordinator lives."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

REPORT_SECONDS = 60.0
"""Seconds between two lines of the log while the trainer waits for a call."""


class LoopThread:
    """Runs coroutines for other threads.

    Args:
        failed: called with an exception that nobody awaits. It is a defect, or a fault of the machine.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._handle)
        threading.Thread(target=self._loop.run_forever, name="coordinator", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T], what: str, seconds: float) -> T:
        """Return the result of ``work``, which is described by ``what``, or raise its exception.

        Raises RuntimeError if it takes more than ``seconds``. A line of the log says every minute what is waited for.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        began = time.monotonic()
        while not wait([future], min(REPORT_SECONDS, max(0.0, began + seconds - time.monotonic()))).done:
            waited = time.monotonic() - began
            if waited >= seconds:
                future.cancel()
                raise RuntimeError(
                    f"the coordinator must {what} within {seconds:g} seconds, got no answer; see its last lines in the "
                    "log"
                )
            logger.warning("The trainer has waited %.0f s for the coordinator to %s", waited, what)
        return future.result()

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        logger.error("The coordinator failed: %s", context["message"], exc_info=error)
        self._failed(error)
