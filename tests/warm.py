"""Start Python processes by forking one that has imported what they need, which saves 5 to 10 seconds of imports each.

``python()`` returns a program to be called as ``python`` is. ``sys.executable`` is that program in all that it starts,
so that launchers, Ray and multiprocessing start their processes by it, too. Where the point of a test is the process
itself, with its signals and what it leaves, Python is started as usual.
"""

import array
import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "apportion.cli",
    "apportion.lab.command",
    "apportion.lab.study.worker",
    "apportion.trl.command",
    "datasets",
    "torch.distributed.run",
    "transformers.models.qwen2.modeling_qwen2",
    "trl.trainer.grpo_trainer",
    "trl.trainer.rloo_trainer",
)
"""What commands and launched scripts of the lab and of TRL import."""

NUMBER = struct.Struct("!i")

# What stands for Python, in the shell's eyes: it lives as long as what it has started, and ends it when it is orphaned.
PYTHON = """#!{python} -IS
import array, json, os, select, signal, socket, struct, sys
words = sys.argv[1:]
while words and words[0] == "-u":
    words = words[1:]
spawned = words[-1:] == ["--multiprocessing-fork"]
words = words[words.index("-c"):] if spawned else words
if not words or (words[0].startswith("-") and words[0] != "-m" and not spawned):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
numbers = [0, 1, 2]
if spawned:  # its pipes have the numbers that its parent gave them
    numbers = [int(each) for each in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + each)]
request = json.dumps([words, dict(os.environ), os.getcwd(), numbers]).encode()
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({address!r})
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))]
    warm.sendmsg([struct.pack("!i", len(request))], streams)
    warm.sendall(request)
    for number in set(numbers) - {{0, 1, 2}}:
        os.close(number)
    process = struct.unpack("!i", warm.recv(4, socket.MSG_WAITALL))[0]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    parent = os.getppid()
    while not select.select([warm], [], [], 1.0)[0]:
        if os.getppid() != parent:
            sys.exit(1)
    status = warm.recv(4, socket.MSG_WAITALL)
status = struct.unpack("!i", status)[0] if len(status) == 4 else 1
if status < 0:
    if status not in (-signal.SIGKILL, -signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def received(connection):
    """The words, environment, folder and numbers of the streams of a process to be started, and these streams."""
    streams = array.array("i")
    space = socket.CMSG_SPACE(32 * streams.itemsize)
    head, ancillary, _, _ = connection.recvmsg(NUMBER.size, space, socket.MSG_WAITALL)
    for _, _, data in ancillary:
        streams.frombytes(data)
    with connection.makefile("rb") as request:  # reads all, also where a signal interrupts it
        return json.loads(request.read(NUMBER.unpack(head)[0])), list(streams)


class Warm:
    """The process that forks: ``serve`` returns in every child, with what that is to run."""

    def __init__(self, listener):
        self.listener = listener
        self.children = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin, selectors.EVENT_READ)
        self.woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.selector.register(self.woken, selectors.EVENT_READ)

    def serve(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is sys.stdin:
                    self.end()  # whoever started this is gone
                elif key.fileobj is self.listener:
                    request = self.start(self.listener.accept()[0])
                    if request is not None:
                        return request
                elif key.fileobj == self.woken:
                    os.read(self.woken, 4096)
                    self.reap()
                else:
                    self.stop(key.fileobj)

    def start(self, connection):
        """Fork. Return what to run in the child, and None in this process."""
        try:
            request, streams = received(connection)
        except (OSError, ValueError, struct.error):  # its caller was killed while it asked
            connection.close()
            return None
        process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            for each in (connection, self.listener, *self.children.values()):
                each.close()
            return request, streams
        for stream in streams:
            os.close(stream)
        self.children[process] = connection
        with contextlib.suppress(OSError):  # a killed caller is noticed below
            connection.sendall(NUMBER.pack(process))
        self.selector.register(connection, selectors.EVENT_READ)
        return None

    def reap(self):
        for process in list(self.children):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                connection = self.children.pop(process)
                with contextlib.suppress(KeyError, OSError):  # its caller may have been killed
                    self.selector.unregister(connection)
                    connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
                connection.close()

    def stop(self, connection):
        """The caller of a process was killed: so is the process; it is reaped as any other."""
        for process, its in self.children.items():
            if its is connection:
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(KeyError, ValueError):  # ``reap`` may just have closed it
            self.selector.unregister(connection)

    def end(self):
        for process in self.children:
            os.kill(process, signal.SIGKILL)
        for process in self.children:
            os.waitpid(process, 0)
        sys.exit()


def become(words, environment, folder, numbers, streams, program):
    """Runs a script, a module, or what multiprocessing spawns, in this process as Python does."""
    high = [fcntl.fcntl(stream, fcntl.F_DUPFD, 200) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, stream in zip(numbers, high, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.executable = program
    multiprocessing.set_executable(program)
    if (signals := sys.modules.get("apportion.runs.signals")) is not None:
        signals._signals.process = os.getpid()  # this is a command, and no fork of one
    numpy.random.seed()  # as the standard library's generator does by itself
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, folder)
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def forked(words, folder=ROOT, streams=(), **environment):
    """Run ``python`` with ``words`` in a fork of this process, which has imported everything, and wait for its end.

    ``streams`` replaces stdin, stdout and stderr by other files, or closes those that are None. Use a new process where
    a test is about what is imported.
    """
    with open(os.devnull, "rb") as none, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        taken = {0: none, 1: out, 2: err} | dict(streams)
        with warnings.catch_warnings(action="ignore"):  # newer Pythons warn of forks of processes with threads
            process = os.fork()
        if not process:
            _run_and_exit(
                list(map(str, words)), {**os.environ, "OMP_NUM_THREADS": "1", **environment}, str(folder), taken
            )
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        said = []
        for each in (out, err):
            each.seek(0)
            said.append(each.read().decode())
    return subprocess.CompletedProcess(words, code, *said)


def cold(*words, folder=ROOT, seconds=600, **environment):
    """Run ``python`` with ``words`` in a new process, which has imported nothing, and wait for its end."""
    given = {**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, encoding="utf-8", timeout=seconds)


def _path():
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _run_and_exit(words, environment, folder, streams):
    """Be the process that runs ``words``, and end as it does."""
    code = 1
    try:
        signal.alarm(300)
        warnings.simplefilter("ignore")  # pytest makes them errors
        high = {number: os.dup(stream.fileno()) for number, stream in streams.items() if stream is not None}
        for number in (0, 1, 2):
            os.dup2(high[number], number) if number in high else os.close(number)
        written = [os.fdopen(number, "w") if number in high else None for number in (1, 2)]
        sys.stdin, (sys.stdout, sys.stderr) = os.fdopen(0), written
        sys.modules["__main__"] = types.ModuleType("__main__")  # or a process that it spawns would import pytest
        code = _exit_code(words, environment, folder)
        for stream in filter(None, written):
            with contextlib.suppress(OSError):
                stream.flush()
    finally:
        os._exit(code)


def _exit_code(words, environment, folder):
    try:
        become(words, environment, folder, [], [], sys.executable)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python ends a process
        traceback.print_exc()
        return 1
    return 0


def serve(folder):
    """Write ``folder``/python, and fork a process for each call of it, until stdin ends."""
    address, program = f"{folder}/socket", Path(folder) / "python"
    program.write_text(PYTHON.format(python=sys.executable, address=address))
    program.chmod(0o755)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        (words, environment, cwd, numbers), streams = Warm(listener).serve()
    become(words, environment, cwd, numbers, streams, str(program))


def start(module, folder, environment):
    """Start ``python -m module folder``, which calls ``serve``, and return its process once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{module} must import what processes need, got an error; run it by hand to see why")
    return process


@functools.cache
def python():
    """Return a program that stands for Python and has ``IMPORTED``. It ends with this process.

    With TESTS_COLD=1 in the environment it is Python itself. A test that passes only then has found a fault of this
    file.
    """
    if os.environ.get("TESTS_COLD"):
        return sys.executable
    folder = tempfile.mkdtemp(prefix="w", dir="/tmp")  # for a socket, whose path may have about 100 characters
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    python.process = start("tests.warm", folder, os.environ | {"PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"})
    return f"{folder}/python"


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    serve(sys.argv[1])
