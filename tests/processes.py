"""Commands that tests start, with all processes that come of them, and a look at which of these still run."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil

ROOT = Path(__file__).parents[1]
MARK = "APPORTION_TEST_FAMILY"
PATIENCE_SECONDS = 400.0
"""How long to wait for what must come; machines are busy."""


class Command:
    """A command in the folder ``cwd``, started at once. As a context it ends with all its processes.

    ``program`` stands for Python: that of ``tests.warm`` saves imports, and hides its processes from ``family``.
    """

    def __init__(self, cwd, *arguments, python=("-m", "apportion"), program=sys.executable, **environment):
        self.mark = uuid4().hex
        self.process = subprocess.Popen(
            [program, *python, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: self.mark, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=default_signals,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.signal_all(signal.SIGKILL)
        self.process.communicate()

    def family(self):
        """Return the processes of this command that still run."""
        return marked(self.mark)

    def signal_all(self, number):
        """Send a signal to every process of this command. Some may end before it comes, because another one ended."""
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def children(self):
        """Return those besides the first."""
        return [each for each in self.family() if each.pid != self.process.pid]

    def until(self, true):
        """Wait until ``true`` returns something true, and return that. The command must still run."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := true()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found

    def ended(self):
        """Wait for the end; return the exit code, stdout and stderr."""
        out, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, out, errors

    def nothing_left(self, seconds=20.0):
        """Return whether all its processes end by themselves within ``seconds``, of which most need well under 5."""
        return nothing_left(self.mark, seconds)


def nothing_left(mark, seconds=20.0):
    """Return whether all processes with ``mark`` end by themselves within ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def marked(mark):
    """Return the processes that run with ``mark`` as the value of ``MARK`` in their environment."""
    return [each for each in psutil.process_iter() if _mark(each) == mark]


def default_signals():
    """Let signals act as usual: the tests may run under nohup, or in the background of a shell, which ignore some."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def _mark(process):
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None
