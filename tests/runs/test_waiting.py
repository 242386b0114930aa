"""What a person sees while a command computes: something on a terminal, and nothing in a file or a pipe."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from apportion.runs.waiting import waiting\nwith waiting('reading [log]'): pass"]


def shown(stderr, **settings):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    return subprocess.run(COMMAND, env=environment, stderr=stderr, check=True, timeout=60, **settings)


def test_nothing_is_written_to_a_pipe():
    assert shown(subprocess.PIPE).stderr == b""


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX")
def test_a_terminal_shows_what_is_done():
    ours, theirs = pty.openpty()
    shown(theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    assert b"reading [log]" in os.read(ours, 10_000)
