"""Tasks in processes of their own. Each process ends when its parent ends, whatever ends that.

A task is a function of a ``Parent``, with its arguments. A process is linked to its parent by one pipe. It carries the
task, then messages back, and a word to stop. The pipe is at its end when the parent is gone, also by SIGKILL; a thread
of the process waits for that. It runs before anything slow is imported.
"""

import ctypes
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from apportion.runs.signals import ignore_signals, on_stop, signals_held, stop_later

STOP = b"stop"
PR_SET_PDEATHSIG, KILL = 1, 9
"""Linux's number for the signal that a process gets when its parent ends."""


class RunError(Exception):
    """A run that cannot go on: which one, what is wrong and what to do, in one line."""


class ChildError(Exception):
    """An error that a task did not expect. The message is the traceback of its process."""


@dataclass(frozen=True)
class ChildTask:
    """A call of ``function(parent, *arguments)`` in a process of its own. Errors call it by its ``name``.

    ``saves`` says that it saves something if it is told to stop. If it does not, or has not sent its first message
    yet, it is killed.
    """

    name: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    saves: bool = True


@dataclass(frozen=True)
class Parent:
    """The parent of a process, as seen by its task."""

    link: Connection
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def wants_to_stop(self) -> bool:
        """Whether the task must save and return."""
        return self._stop.is_set()

    def tell(self, message: object) -> None:
        """Send ``message``, which must not be an exception."""
        self.link.send(message)

    def watch(self) -> None:
        """Wait for the request to stop, then for the end of the parent. Then end this process."""
        try:
            while self.link.recv_bytes() == STOP:
                self._stop.set()
        finally:
            os._exit(1)


def run_all(
    tasks: Sequence[ChildTask], parallel: int, hear: Callable[[str, Any], None], interrupted: Callable[[], None]
) -> None:
    """Run ``tasks`` in order, at most ``parallel`` at a time.

    ``hear`` is called with the name of a task and each message.

    If a task fails, or a signal comes, all others are told to stop, and the error is raised when they have ended. On a
    signal ``interrupted`` is called first.

    Raises RunError for a process that was killed, the OSError or RunError that a task raises, and ChildError for any
    other error of a task.
    """
    waiting, running = list(reversed(tasks)), dict[Connection, _Child]()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                _start(waiting.pop(), running)
            _hear_from(running, hear)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            interrupted()
        if (failure := _stop(running, hear)) is not None:
            raise failure from None
        raise
    except BaseException:
        _stop(running, hear)
        raise


@dataclass
class _Child:
    task: ChildTask
    link: Connection
    process: Any
    has_begun: bool = False


def _start(task: ChildTask, running: dict[Connection, _Child]) -> None:
    """Start the process of ``task``, and add it to those that are ``running``."""
    content = pickle.dumps((task.function, task.arguments))
    context = multiprocessing.get_context("spawn")
    if os.name == "posix":
        resource_tracker.ensure_running()  # its start lets signals through again, so it must not come later
    with signals_held():
        link, theirs = context.Pipe()
        process = context.Process(target=_begin, args=(theirs,), name=task.name)
        process.start()
        theirs.close()
        running[link] = _Child(task, link, process)
        with suppress(OSError):  # it was killed; that is noticed when its link is read
            link.send_bytes(content)


def _begin(link: Connection) -> None:
    """Run the task that arrives through ``link``, and send its outcome back."""
    ignore_signals()
    end_with_parent()
    parent = Parent(link)
    try:
        task = link.recv_bytes()
    except EOFError:
        os._exit(1)
    threading.Thread(target=parent.watch, daemon=True).start()
    outcome: BaseException | None = None
    try:
        function, arguments = pickle.loads(task)  # imports what the task needs, which takes seconds
        if not parent.wants_to_stop:
            function(parent, *arguments)
    except (OSError, RunError) as error:
        outcome = error
    except BaseException:  # noqa: BLE001 - the parent raises it
        outcome = ChildError(traceback.format_exc())
    link.send(_Ended(outcome))
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):  # nobody may read it any more
            stream.flush()
    os._exit(0)  # it takes Python seconds to take down what a task has imported


def end_with_parent() -> None:
    """Have Linux kill this process when its parent ends, because a process that is stopped by SIGSTOP reads no pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, KILL)


@dataclass(frozen=True)
class _Ended:
    """The last message of a task: the error that ended it, or None."""

    error: BaseException | None


def _hear_from(running: dict[Connection, _Child], hear: Callable[[str, Any], None]) -> None:
    """Wait until children have messages, and take one of each. Raise the error of a child that failed."""
    for link in wait(list(running)):
        assert isinstance(link, Connection)
        with stop_later():
            child = running[link]
            try:
                message = link.recv()
            except (EOFError, OSError):
                message = _Ended(RunError(f"{child.task.name} was killed from outside (out of memory?)"))
            if not isinstance(message, _Ended):
                child.has_begun = True
                hear(child.task.name, message)
                continue
            del running[link]
            _reap(child)
            if message.error is not None:
                raise message.error


def _stop(running: dict[Connection, _Child], hear: Callable[[str, Any], None]) -> Exception | None:
    """Stop all children, and wait until they have ended. Return the first error among them."""
    failure: Exception | None = None
    with on_stop(lambda: None):
        for link, child in list(running.items()):
            if child.task.saves and (child.has_begun or link.poll()):
                with suppress(OSError):  # it has ended, and its last message is read below
                    link.send_bytes(STOP)
            else:
                child.process.kill()
                del running[link]
                _reap(child)
        while running:
            try:
                _hear_from(running, hear)
            except (OSError, RunError, ChildError) as error:
                failure = failure or error
    return failure


def _reap(child: _Child) -> None:
    """Wait until the process of a finished child has ended."""
    child.link.close()
    child.process.join()
