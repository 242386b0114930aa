"""Signals that stop a command: Ctrl-C, SIGTERM, which Slurm and Kubernetes send, and SIGHUP of a closed terminal.

The first signal raises ``Stopped`` in the main thread, so that the command saves what it has. Another one ends the
process at once. Its children follow, because each of them watches its parent.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
HAS_MASK = hasattr(signal, "pthread_sigmask")
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of the signal. After SIGTERM it is 143."""
REPEAT_SECONDS = 1.0
"""Another signal within this time is a copy of the first: a terminal and a wrapper may both send it."""

T = TypeVar("T")


class Stopped(KeyboardInterrupt):
    """A signal asked the process to stop. ``code`` is the exit code for that signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"stopped by signal {code - 128}")
        self.code = code


class _Signals:
    """The signals that the process has received. The first one raises ``Stopped``, or calls ``action``."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.action: Callable[[], object] | None = None
        self.process = os.getpid()
        self._received_at = 0.0

    def receive(self, number: int, frame: object) -> None:
        """Stop the process. End it at once on a second signal, or if it is a fork of the command's process."""
        if os.getpid() != self.process:
            os._exit(128 + number)
        if self.code is None:
            self.code, self._received_at = 128 + number, time.monotonic()
            self.act()
        elif time.monotonic() - self._received_at >= REPEAT_SECONDS:
            os.write(2, b"Stopped at once.\n")
            os._exit(128 + number)

    def act(self) -> None:
        """Act on the first signal: raise ``Stopped`` or call the action."""
        if self.action is not None:
            self.action()
        elif self.code is not None:
            raise Stopped(self.code)


_signals = _Signals()


def run_command(command: Callable[[], object]) -> None:
    """Run ``command`` as the main function of this process, whose exit code says which signal stopped it.

    A signal that the process was started to ignore, as under nohup, stays ignored.
    """
    ours = [each for each in SIGNALS if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler)]
    for number in ours:
        signal.signal(number, _signals.receive)
    try:
        command()
    except SystemExit:
        raise
    except BaseException:
        if _signals.code is None:
            raise
        with suppress(OSError):  # the terminal may be gone
            sys.stderr.write("Stopped.\n")  # whatever the error is: imports in C turn ``Stopped`` into others
        sys.exit(_signals.code)
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)  # no traceback while Python shuts down


def ignore_signals() -> None:
    """Ignore signals in this process, because its parent decides what its children do."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if HAS_MASK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def code_of(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a process that ``stop`` ends."""
    return stop.code if isinstance(stop, Stopped) else INTERRUPTED


@contextmanager
def on_stop(action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` on the first signal, in place of raising ``Stopped``, for a block."""
    before, _signals.action = _signals.action, action
    try:
        yield
    finally:
        _signals.action = before


@contextmanager
def stop_later() -> Iterator[None]:
    """Delay the effect of a first signal until the block has ended."""
    held: list[bool] = []
    with on_stop(lambda: held.append(True)):
        yield
    if held:
        _signals.act()


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold signals back for a block, also in processes that it starts until they call ``ignore_signals``."""
    with stop_later():  # because another thread may receive the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if HAS_MASK else set()
        try:
            yield
        finally:
            if HAS_MASK:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` as ``asyncio.run`` does. A signal cancels it; once it has ended, ``Stopped`` is raised."""

    async def cancelled_by_a_signal() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        with on_stop(partial(loop.call_soon_threadsafe, task.cancel)):
            return await work

    try:
        return asyncio.run(cancelled_by_a_signal())
    except asyncio.CancelledError:
        if _signals.code is None:
            raise
        raise Stopped(_signals.code) from None
