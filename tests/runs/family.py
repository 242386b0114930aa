"""A command for tests: three tasks in processes of their own, which say when they run and when they save."""

import os
import sys
import time
from pathlib import Path

from apportion.runs.children import ChildTask, RunError, run_all
from apportion.runs.signals import run_command


def work(parent, folder, name):
    """Take steps until told to stop, then save."""
    parent.tell("begun")
    (folder / name).write_text(str(os.getpid()))
    while not parent.wants_to_stop:
        time.sleep(0.01)
    (folder / f"{name}.saved").touch()


def compute(parent, folder, name):
    """Never look up."""
    (folder / name).write_text(str(os.getpid()))
    while True:
        sum(range(1000))


def import_slowly(parent, folder, name):
    """Stand for a task that is never reached, because its arguments take long to import."""


class Slow:
    """An argument that takes for ever to unpickle, as an import does."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return _load, (self.path,)


def _load(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def fail(parent, folder, name, error):
    """Fail once the others run."""
    while len(list(folder.glob("work-*"))) < 2:
        time.sleep(0.01)
    raise error


def tasks(folder, kind):
    work_twice = [ChildTask(f"work-{i}", work, (folder, f"work-{i}")) for i in range(2)]
    third = {
        "compute": ChildTask("third", compute, (folder, "third"), saves=False),
        "import": ChildTask("third", import_slowly, (Slow(folder / "third"), "third")),
        "run error": ChildTask("third", fail, (folder, "third", RunError("this run is damaged; delete it"))),
        "full disk": ChildTask("third", fail, (folder, "third", OSError(28, "No space left on device", "checkpoint"))),
        "bug": ChildTask("third", fail, (folder, "third", KeyError("bug"))),
    }
    return [*work_twice, third[kind]]


def interrupted():
    sys.stdout.write("stopping\n")
    sys.stdout.flush()


def main():
    run_all(tasks(Path(sys.argv[1]), sys.argv[2]), 3, lambda name, message: None, interrupted)


if __name__ == "__main__":
    run_command(main)
