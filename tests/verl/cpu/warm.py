"""Start Python processes by forking one that has imported verl, which saves seven seconds of imports in each.

``python -m tests.verl.cpu.warm FOLDER`` listens at FOLDER/socket, and writes FOLDER/python: a program to
be called as ``python`` is. Ray starts its processes by ``sys.executable``, which is that program in all that it starts.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from pathlib import Path

import numpy

os.environ |= {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
# Ray reads these where it is imported, and cannot know then of which job and raylet a worker will be: here every run
# has its own Ray with one job, and a worker waits for the end of this process, not of its raylet.
import ray
import ray.actor

IMPORTED = (
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.utils.config",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "tests.verl.cpu.server",
)
NUMBER = struct.Struct("!i")

# What stands for Python, in the shell's eyes: it lives as long as what it has started, and ends it when it is orphaned.
PYTHON = """#!{python} -IS
import array, json, os, select, signal, socket, struct, sys
words = sys.argv[1:]
while words and words[0] == "-u":
    words = words[1:]
if not words or (words[0].startswith("-") and words[0] != "-m"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
request = json.dumps([words, dict(os.environ), os.getcwd()]).encode()
with socket.socket(socket.AF_UNIX) as warm:
    warm.connect({address!r})
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    warm.sendmsg([struct.pack("!i", len(request))], streams)
    warm.sendall(request)
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
    """The words, environment and folder of a process to be started, and its standard streams."""
    streams = array.array("i")
    space = socket.CMSG_SPACE(3 * streams.itemsize)
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


class _SystemRandom:
    """Ray's identifiers of actor classes, without its random generator: see ``imported``."""

    @staticmethod
    def from_random():
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


def imported():
    """Imports what every process needs, and checks that processes can then be forked.

    Ray seeds its generator of identifiers where it first needs one. That must not be here: processes would share it,
    and now and then two of them would give the same name to different objects.
    """
    ray.actor.ActorClassID = _SystemRandom  # of classes that are actors by a decorator, while modules are imported
    for name in IMPORTED:
        importlib.import_module(name)
    ray.actor.ActorClassID = ray.ActorClassID
    if _identifier() == _identifier():
        raise RuntimeError("Ray's generator must not be seeded before processes are forked; find the import that does")


def _identifier():
    """An identifier that a forked process takes from Ray's generator."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(writer, ray.PlacementGroupID.of(ray.JobID.from_int(1)).binary())
        os._exit(0)
    os.waitpid(process, 0)
    os.close(writer)
    with open(reader, "rb") as found:
        return found.read()


def become(words, environment, folder, streams, program):
    """Runs a script or module in this process as Python does."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.executable = program
    numpy.random.seed()  # as the standard library's generator does by itself
    sys.stdout.reconfigure(line_buffering=True)
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def main(folder):
    folder = Path(folder)
    imported()
    address, program = str(folder / "socket"), folder / "python"
    program.write_text(PYTHON.format(python=sys.executable, address=address))
    program.chmod(0o755)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        (words, environment, folder), streams = Warm(listener).serve()
    become(words, environment, folder, streams, str(program))


if __name__ == "__main__":
    main(sys.argv[1])
