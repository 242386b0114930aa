"""A process that compares answers with math-verify. A comparison that takes too long can be killed, at little cost.

sympy may never finish with an answer like 9^{9^{9^9}}, in C code that no exception interrupts. Only killing the process
helps, and importing sympy again takes a second or more. So the process imports it once, and a fork of it, the worker,
compares. If the worker is killed, the process forks another one within milliseconds. Where there is no fork, the
process is its own worker and is started again.

This file holds both ends of a pipe: ``MathProcess``, and the script that it runs. A request is one line of JSON, with
its number and a pair of answers or a single one. The reply is one line, with that number and true or false. A new
worker first writes its process id, and whether its predecessor took too long. Then it answers what its predecessor had
not read, so replies to earlier requests are skipped. The script imports nothing of apportion. Unlike
``multiprocessing`` it does not import the caller's main module again, so the caller needs no main guard.
"""

import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from threading import Event, Thread, Timer
from typing import Any

KILL = 9
"""The signal that no process can ignore. Windows has no name for it."""

BUSY = 8
"""Limit by the clock, as a multiple of the limit of processor time, because other processes may use the processor. No
verdict depends on the load, because the limit itself is of processor time."""
HAS_TIMER = hasattr(signal, "setitimer")
"""Whether processor time can be limited; not on Windows."""
START_SECONDS = 120.0
"""Time limit for the start, which imports sympy; generous because the machine may be busy."""
STOP_SECONDS = 5.0
"""Time limit for the end after the worker was killed."""
FIRST_PAIRS = (["1/2", "0.5"], [r"\sqrt{2}", "x"], ["x^2 = y", "y = 2"])
"""Pairs that are compared before the first worker starts, so that math-verify and sympy are warm. A cold worker takes
half a second for its first formula, more than the quick lane allows."""
PERCENT = r"\%"
"""How a percentage ends."""
IMAGINARY = re.compile(r"\di(?![A-Za-z])")
"""The imaginary unit after a digit, where math-verify takes it for a real variable."""
DIGITS = 50
"""Decimal digits to which numbers are evaluated."""
PARSED = 4096
"""Parsed answers that a worker keeps in memory."""


class MathProcess:
    """Compares one pair at a time, in a process that is started when first needed and again if it ended.

    ``timeout_seconds`` are the processor time that a pair may take.

    Only one thread at a time may call it. ``close`` may be called from any thread.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[str] | None = None
        self._worker: int | None = None
        self._requests = 0
        self._overran = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The id of the worker, which computes; None if there is none."""
        return self._worker

    def same(self, first: str, second: str) -> bool | None:
        """Return whether the answers mean the same; None if the worker took too long, or died, over this pair.

        If it died before its time was up, the pair is sent once more, because it may have been killed before it saw it.

        Raises RuntimeError if the process cannot be started, and after ``close``.
        """
        return self._ask([first, second])

    def reads(self, answer: str) -> bool | None:
        """Return whether math-verify finds mathematics in the answer; None and errors as in ``same``."""
        return self._ask([answer])

    def check_open(self) -> None:
        """Raise RuntimeError if this was closed."""
        if self._closed:
            raise RuntimeError("nothing can be compared after the equivalence was closed; make a new one")

    def close(self) -> None:
        """Kill the process for good, so that a caller who waits for a verdict is released at once."""
        self._closed = True
        process = self._process
        if process is not None:
            self._kill_worker(process)

    def stop(self) -> None:
        """Kill the process and its worker, if they run, and wait until they are gone."""
        process = self._process
        if process is None:
            return
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # the process died before it read a request
            process.stdin.close()
        self._kill_worker(process)
        self._process = self._worker = None
        try:
            process.wait(STOP_SECONDS)  # it reaps the worker, and notices the closed pipe
        except subprocess.TimeoutExpired:
            _kill_all(process)
            process.wait()
        process.stdout.close()

    def _ask(self, answers: list[str]) -> bool | None:
        for _ in range(2):
            process = self._running()
            verdict, late = self._reply(process, answers)
            if verdict is not None or late:
                return verdict
        return None

    def _running(self) -> subprocess.Popen[str]:
        """Return the process, started if necessary."""
        self.check_open()
        if self._process is None:
            # Run the file, because -m would import apportion. Pass on sys.path, because the caller may have changed it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(self.timeout_seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"},
                process_group=0,  # killed together with its worker
            )
            timer = Timer(START_SECONDS, _kill_all, [self._process])
            timer.start()
            try:
                self._next_verdict(self._process)
            finally:
                timer.cancel()
            if self._process is None:
                raise RuntimeError("math-verify must start, its process ended; see python -c 'import math_verify'")
            self.check_open()  # another thread may have closed it meanwhile
        return self._process

    def _reply(self, process: subprocess.Popen[str], answers: list[str]) -> tuple[bool | None, bool]:
        """Return the verdict, None if the worker died over it, and whether the worker was killed for being late."""
        assert process.stdin
        late = Event()

        def overrun() -> None:
            late.set()
            self._kill_worker(process)

        self._requests += 1
        self._overran = False
        timer = Timer(self.timeout_seconds * (BUSY if HAS_TIMER else 1), overrun)
        timer.start()
        try:
            process.stdin.write(f"{json.dumps([self._requests, answers])}\n")
            process.stdin.flush()
            verdict = self._next_verdict(process)
        except BrokenPipeError:  # the process had died
            verdict = None
            self.stop()
        finally:
            timer.cancel()
            timer.join()
        if late.is_set() and verdict is not None:  # killed just after it had replied
            self._next_verdict(process)
        return verdict, late.is_set() or self._overran

    def _next_verdict(self, process: subprocess.Popen[str]) -> bool | None:
        """Return the verdict of the last request; None if a new worker wrote its id first, or if the process ended."""
        assert process.stdout
        for line in iter(process.stdout.readline, ""):
            content = json.loads(line)
            if isinstance(content, dict):
                self._worker, self._overran = content["worker"], content["overran"]
                return None
            number, verdict = content
            if number == self._requests:
                return bool(verdict)
        self._worker = None
        self.stop()
        return None

    def _kill_worker(self, process: subprocess.Popen[str]) -> None:
        if self._worker is None or self._worker == process.pid:
            _kill_all(process)
        else:
            with suppress(ProcessLookupError):  # it died by itself, and the next one has not written its id yet
                os.kill(self._worker, KILL)


def _kill_all(process: subprocess.Popen[str]) -> None:
    """Kill the process and its worker."""
    kill_group = getattr(os, "killpg", None)  # missing on Windows
    if kill_group is None:
        process.kill()
    else:
        with suppress(ProcessLookupError):  # both are gone
            kill_group(process.pid, KILL)


def main(limit_seconds: float) -> None:
    """Import math-verify, then keep a worker running that answers each line of standard input until it ends.

    Both end with the caller. The worker ends after ``limit_seconds`` of processor time over one pair, also in C code of
    sympy, which would keep it from noticing anything else.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to a whole group of processes; the caller ends and closes
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    from math_verify import grader, verify  # noqa: PLC0415 - an optional extra

    logging.disable()  # it would warn that its own timeouts are off
    warnings.simplefilter("ignore")
    replies, sys.stdout = sys.stdout, sys.stderr
    grader.sympy_numeric_eq, grader.solve = numbers_equal, solved
    read = lru_cache(PARSED)(reader())

    def verdict(answers: list[str]) -> bool:
        expressions = [read(answer.removesuffix(PERCENT)) for answer in answers]
        if None in expressions:
            return False
        if len(answers) == 1:
            return True
        pairs = [expressions]
        if answers[0].endswith(PERCENT) != answers[1].endswith(PERCENT):  # 50% is 50 and 1/2
            pairs.append([read(_share(answer)) for answer in answers])
        return any(verify(*each, timeout_seconds=None) for pair in pairs for each in (pair, pair[::-1]))

    def alarm(seconds: float) -> None:
        if HAS_TIMER:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process

    def reply(content: object) -> None:
        replies.write(f"{json.dumps(content)}\n")
        replies.flush()

    for pair in FIRST_PAIRS:
        verdict(pair)
    fork, overran = getattr(os, "fork", None), False  # missing on Windows
    while fork is not None and (worker := fork()):
        overran = os.WTERMSIG(os.waitpid(worker, 0)[1]) == signal.SIGPROF
        if _caller_is_gone(0):
            return
    Thread(target=_end_with_caller, daemon=True).start()
    reply({"worker": os.getpid(), "overran": overran})
    for line in sys.stdin:
        number, answers = json.loads(line)
        alarm(limit_seconds)
        same = verdict(answers)
        alarm(0)
        reply([number, same])


def reader() -> Callable[[str], Any]:
    """Return a parser from LaTeX to sympy. It returns None unless the grammar reads all of the text, and reads sense.

    The text goes to the grammar as it is. ``math_verify.parse`` would first drop what it does not know, and then take
    a number out of what it cannot read.
    """
    import sympy  # noqa: PLC0415
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # noqa: PLC0415
    from math_verify.grader import should_treat_as_complex  # noqa: PLC0415

    config = ConversionConfig(lowercase_symbols=False)

    def read(text: str) -> Any:
        real = not (should_treat_as_complex(text) or IMAGINARY.search(text))
        try:
            found = latex2sympy(
                text, is_real=real, convert_degrees=True, normalization_config=None, conversion_config=config
            )
        except Exception:  # noqa: BLE001 - the grammar and its converter raise anything over what they cannot read
            return None
        nonsense = (sympy.nan, sympy.zoo)
        return None if getattr(found, "has", lambda *_: False)(*nonsense) else found

    return read


def numbers_equal(first: Any, second: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Return whether two numbers, or all numbers of two matrices, are equal, in place of math-verify's six decimals.

    A decimal equals a number that differs by at most half of its sixth place and a ten-thousandth of the larger. Whole
    numbers and fractions must be equal, all others equal to 60 digits. Both settings of math-verify are ignored.
    """
    import sympy  # noqa: PLC0415

    if isinstance(first, sympy.MatrixBase) and isinstance(second, sympy.MatrixBase):
        return first.shape == second.shape and all(
            numbers_equal(*pair, float_rounding, numeric_precision)
            for pair in zip(first.flat(), second.flat(), strict=True)
        )
    try:
        if (difference := first - second).is_Rational:
            return bool(difference == 0)
        gap, *sizes = (abs(sympy.N(each, DIGITS)) for each in (difference, first, second))
        size = max(sizes)
        if not gap.is_number or not gap.is_finite:
            return False
        if first.has(sympy.Float) or second.has(sympy.Float):
            return bool(gap <= 5e-7 and gap <= 1e-4 * size)
        return bool(gap <= size * sympy.Float("1e-60"))
    except Exception:  # noqa: BLE001 - what cannot be evaluated is no number
        return False


def solved(relation: Any, symbols: Any) -> Any:
    """Return the solutions of a relation. Raise ValueError if there are none, because then no two are compared."""
    import sympy  # noqa: PLC0415

    if not (solutions := sympy.solve(relation, symbols)):
        raise ValueError("two relations must have solutions to be compared by them, got none; compare them as they are")
    return solutions


def _share(answer: str) -> str:
    """Return a percentage as the formula of its share. Return any other answer unchanged."""
    return rf"\frac{{{answer.removesuffix(PERCENT)}}}{{100}}" if answer.endswith(PERCENT) else answer


def _caller_is_gone(wait_milliseconds: int | None) -> bool:
    """Return whether the other end of standard input is closed, within the time to wait; None waits until it is."""
    watched = select.poll()
    watched.register(0, 0)  # no event but the end of the connection is awaited
    return bool(watched.poll(wait_milliseconds))


def _end_with_caller() -> None:
    """End this process as soon as the caller is gone."""
    if hasattr(select, "poll"):
        _caller_is_gone(None)
        os._exit(1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
