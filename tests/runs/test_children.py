"""Processes end with their parent, and save if one of them fails or a signal comes."""

import os
import signal
import sys

import psutil
import pytest

from tests.processes import Command
from tests.soak import case


def start(folder, kind):
    """Start three tasks and wait until each of them runs."""
    command = Command(folder, folder, kind, python=("-m", "tests.runs.family"))
    expected = ["work-0", "work-1", *(["third"] if kind in ("compute", "import") else [])]
    command.until(lambda: all((folder / name).exists() and (folder / name).read_text() for name in expected))
    return command


def saved(folder):
    return sorted(path.name for path in folder.glob("*.saved"))


@pytest.mark.parametrize("kind", ["compute", "import"])
def test_processes_end_with_a_parent_that_was_killed(tmp_path, kind):
    """Also one that computes, one that imports, and the resource tracker."""
    with start(tmp_path, kind) as command:
        assert len(command.children()) >= 3
        command.process.kill()
        command.process.wait()
        assert command.nothing_left()
    assert not saved(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that is stopped")
def test_a_process_that_is_stopped_ends_with_its_parent(tmp_path):
    """It cannot notice the end of the parent itself."""
    with start(tmp_path, "compute") as command:
        os.kill(int((tmp_path / "work-0").read_text()), signal.SIGSTOP)
        command.process.kill()
        command.process.wait()
        assert command.nothing_left()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (signal.SIGINT, "import"),
        (signal.SIGTERM, "compute"),
        *(
            case(number, kind, suite=False)
            for number in (signal.SIGINT, signal.SIGHUP)
            for kind in ("compute", "import")
        ),
    ],
)
def test_a_signal_lets_each_task_save_and_is_the_exit_code(tmp_path, number, kind):
    with start(tmp_path, kind) as command:
        command.process.send_signal(number)
        assert command.ended() == (128 + number, "stopping\n", "Stopped.\n")
        assert saved(tmp_path) == ["work-0.saved", "work-1.saved"]
        assert command.nothing_left()


def test_a_signal_to_every_process_lets_each_task_save(tmp_path):
    """As a terminal does on Ctrl-C, and Slurm with SIGTERM."""
    with start(tmp_path, "compute") as command:
        command.signal_all(signal.SIGTERM)
        assert command.ended()[0] == 143
        assert saved(tmp_path) == ["work-0.saved", "work-1.saved"]
        assert command.nothing_left()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("run error", "RunError: this run is damaged; delete it"),
        case("full disk", "OSError: [Errno 28] No space left on device: 'checkpoint'", suite=False),
        case("bug", "KeyError: 'bug'", suite=False),
    ],
)
def test_a_task_that_fails_lets_the_others_save_and_its_error_is_raised(tmp_path, kind, problem):
    with start(tmp_path, kind) as command:
        ended, _, errors = command.ended()
        assert ended == 1 and problem in errors
        assert saved(tmp_path) == ["work-0.saved", "work-1.saved"]
        assert command.nothing_left()


def test_a_process_that_is_killed_lets_the_others_save_and_is_named(tmp_path):
    with start(tmp_path, "compute") as command:
        psutil.Process(int((tmp_path / "work-1").read_text())).kill()
        code, _, errors = command.ended()
        assert code == 1 and "RunError: work-1 was killed from outside" in errors
        assert saved(tmp_path) == ["work-0.saved"]
        assert command.nothing_left()
