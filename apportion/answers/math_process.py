"""A process that compares answers with math-verify. It can be killed when a comparison hangs.

sympy can take for ever on an answer like 9^{9^{9^9}}, in C code that no exception interrupts. Only killing the process
helps. This file holds both ends of a pipe: ``MathProcess``, and the script that it runs. A request is one line of JSON,
with a pair of answers or a single one. The reply is one line, true or false. The script imports nothing of apportion.
Unlike ``multiprocessing`` it does not import the caller's main module again, so the caller needs no main guard.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import warnings
from functools import lru_cache
from threading import Event, Thread, Timer
from typing import Any

START_SECONDS = 120.0
"""Time limit for the start, which imports sympy; generous because the machine may be busy."""
FIRST_REQUEST = '["1/2", "0.5"]'
"""Its reply says that the process is ready and that math-verify has prepared what it needs for the first pair."""
PARSED = 4096
"""Parsed answers that the process keeps in memory."""


class MathProcess:
    """Compares one pair at a time, in a process that is started when first needed and again if it ended.

    Only one thread at a time may call it. ``close`` may be called from any thread.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        process = self._process
        return process.pid if process else None

    def same(self, first: str, second: str) -> bool | None:
        """Return whether the answers mean the same; None if the process took too long, or died, over this pair.

        If it died before its time was up, the pair is sent once more, because it may have been killed before it saw it.

        Raises RuntimeError if the process cannot be started, and after ``close``.
        """
        return self._ask([first, second])

    def reads(self, answer: str) -> bool | None:
        """Return whether math-verify finds mathematics in the answer; None and errors as in ``same``."""
        return self._ask([answer])

    def _ask(self, answers: list[str]) -> bool | None:
        request = json.dumps(answers)
        for _ in range(2):
            reply, late = self._reply(self._running(), request, self.timeout_seconds)
            if reply:
                return bool(json.loads(reply))
            if late:
                break
        return None

    def check_open(self) -> None:
        """Raise RuntimeError if this was closed."""
        if self._closed:
            raise RuntimeError("nothing can be compared after the equivalence was closed; make a new one")

    def close(self) -> None:
        """Kill the process for good, so that a caller who waits for a verdict is released at once."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Kill the process, if one runs, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _running(self) -> subprocess.Popen[str]:
        """Return the process, started if necessary."""
        self.check_open()
        if self._process is None:
            # Run the file, because -m would import apportion. Pass on sys.path, because the caller may have changed it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(self.timeout_seconds + 1)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"},
            )
            ready, _ = self._reply(self._process, FIRST_REQUEST, START_SECONDS)
            if not ready:
                raise RuntimeError("math-verify must start, its process ended; see python -c 'import math_verify'")
            self.check_open()  # another thread may have closed it meanwhile
        return self._process

    def _reply(self, process: subprocess.Popen[str], request: str, seconds: float) -> tuple[str, bool]:
        """Return the line that answers ``request`` and whether it was late; if empty or late, the process is gone."""
        assert process.stdin and process.stdout
        late = Event()

        def overrun() -> None:
            late.set()
            process.kill()

        timer = Timer(seconds, overrun)
        timer.start()
        try:
            process.stdin.write(f"{request}\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:  # the process had died
            reply = ""
        finally:
            timer.cancel()
            timer.join()
        if late.is_set() or not reply:
            self.stop()
        return reply, late.is_set()


def main(limit_seconds: float) -> None:
    """Answer each line of standard input until it ends.

    The process ends with its caller, also while it imports or computes. C code of sympy may keep it from noticing; on
    POSIX it then ends after ``limit_seconds`` over one pair.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to a whole group of processes; the caller ends and closes
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    Thread(target=_end_with_caller, daemon=True).start()
    from math_verify import parse, verify  # noqa: PLC0415 - an optional extra

    logging.disable()  # it would warn that its own timeouts are off
    warnings.simplefilter("ignore")
    replies, sys.stdout = sys.stdout, sys.stderr

    @lru_cache(PARSED)
    def parsed(answer: str) -> list[Any]:
        return parse(f"${answer}$", parsing_timeout=None)

    def alarm(seconds: float) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)

    for line in sys.stdin:
        alarm(limit_seconds)
        answers = [parsed(answer) for answer in json.loads(line)]
        if len(answers) == 1:  # parse returns the text itself if it is not mathematics
            verdict = any(not isinstance(expression, str) for expression in answers[0])
        else:
            verdict = any(verify(*pair, timeout_seconds=None) for pair in (answers, answers[::-1]))
        alarm(0)
        replies.write(f"{json.dumps(verdict)}\n")
        replies.flush()


def _end_with_caller() -> None:
    """End this process as soon as the other end of standard input is closed."""
    if hasattr(select, "poll"):
        watched = select.poll()
        watched.register(0, 0)  # of no event but the end
        watched.poll()
        os._exit(1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
