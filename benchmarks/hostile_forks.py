"""Run one case in a process of its own, within bounds of time and memory, and record how it ended.

A case is a fork of this process, which has imported everything already.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES, FILE_BYTES = 10, 120, 2 * 2**30, 2**28
NO_NETWORK = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True)
class Outcome:
    """How a case ended: its exit code (negative for a signal), CPU ``seconds``, ``memory`` above the start in bytes."""

    code: int
    seconds: float
    memory: int
    out: str
    err: str


def run_forked(act, folder, environment):
    """Run ``act`` in a fork, in the working directory ``folder``; SystemExit and exceptions end it as Python does."""
    out, err = folder.parent / "out", folder.parent / "err"
    child = os.fork()
    if not child:
        _run_and_exit(act, folder, out, err, environment)
    watch = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([watch], [], [], WALL_SECONDS)
    finally:
        os.close(watch)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    _end_group(child)
    return Outcome(
        os.waitstatus_to_exitcode(status),
        used.ru_utime + used.ru_stime,
        max(0, used.ru_maxrss * 1024 - int((folder.parent / "start").read_text(encoding="utf-8"))),
        out.read_text("utf-8", "replace"),
        err.read_text("utf-8", "replace"),
    )


def _run_and_exit(act, folder, out, err, environment):
    """Carry out ``act`` as the whole of this process."""
    code = 70
    try:
        os.setsid()
        sys.modules["__main__"] = ModuleType("__main__")  # or processes that a case spawns would import the benchmark
        (folder.parent / "start").write_text(
            str(_resident_bytes()), encoding="utf-8"
        )  # less than the parent's, which has files mapped
        os.chdir(folder)
        os.environ.update(NO_NETWORK | dict(environment))
        for path, place in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), place)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")  # as Python begins
        now = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _exit_code(act)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a fork must never return into the benchmark
        traceback.print_exc()
    finally:
        os._exit(code)


def _exit_code(act):
    try:
        act()
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return (exit.code or 0) & 0xFF
        sys.stderr.write(f"{exit.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as Python ends a process
        traceback.print_exc()
        return 1
    return 0


def _end_group(leader):
    """End the processes that a case has left."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
