"""Signals and kills at every stage of a study leave no process behind, and it resumes to the same curves."""

import signal

import psutil
import pytest

from apportion.lab.study import worker
from apportion.runs.children import RunError
from apportion.runs.folder import LOCK, hold_lock
from tests import warm
from tests.lab.states import STUDY, curves, trained
from tests.processes import Command

pytestmark = [pytest.mark.xdist_group("commands"), pytest.mark.slow]


@pytest.fixture
def folder(tmp_path, small_base_folder):
    (tmp_path / "quick.toml").write_text(STUDY.format(base=small_base_folder))
    return tmp_path


def start_training(folder, *arguments, runs=2, **program):
    """Start the study, and wait until so many runs have a checkpoint."""
    command = Command(folder, "lab", "quick.toml", *arguments, **program)
    command.until(lambda: len(list(folder.glob("runs/quick/*/checkpoint.pt"))) == runs)
    return command


def has_loaded(process, library):
    """Return whether a process has a library in its memory, so that it is in the middle of importing, or beyond."""
    try:
        return any(library in each.path for each in psutil.Process(process.pid).memory_maps())
    except psutil.Error:
        return False


def test_a_study_that_is_killed_leaves_no_process_and_can_be_resumed_at_once(folder, whole):
    """The resumed study waits for processes that have yet to end, which write the same files."""
    with start_training(folder, "--set", "processes=2", runs=1) as killed:
        killed.until(lambda: sum(has_loaded(each, "libtorch") for each in killed.children()) == 2)
        killed.process.kill()
        left = folder / "runs/quick/vip-seed0/.checkpoint.pt.00.unfinished"
        left.parent.mkdir(exist_ok=True)
        left.write_text("half")
        killed.process.wait(10)  # the warm resumption starts sooner than the system ends a process
        trained(folder, "--name", "quick", "--resume")
        assert not left.exists() and killed.nothing_left()
    assert curves(folder / "runs" / "quick") == curves(whole[0] / "runs" / "quick")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_during_the_imports_ends_the_command_with_one_line(folder, number):
    with Command(folder, "lab", "quick.toml") as command:
        command.until(lambda: has_loaded(command.process, "libtorch"))
        command.process.send_signal(number)
        assert command.ended() == (128 + number, "", "Stopped.\n")
    assert not (folder / "runs").exists()


def test_a_signal_during_the_training_of_the_base_leaves_nothing_unfinished(folder):
    overrides = ["--set", "training.base=medium"]
    where = {"program": warm.python(), "XDG_CACHE_HOME": str(folder / "cache")}
    with Command(folder, "lab", "quick.toml", *overrides, **where) as command:
        while "Training the base policy" not in (line := command.process.stdout.readline()):
            assert line
        command.process.send_signal(signal.SIGTERM)
        code, said, errors = command.ended()
    assert (code, errors) == (143, "") and "apportion lab --name quick --resume" in said
    assert not [path for path in (folder / "cache" / "apportion").rglob("*") if path.is_file()]


def test_a_run_that_another_process_trains_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "LOCK_SECONDS", 0.1)
    with (
        hold_lock(tmp_path / LOCK),
        pytest.raises(RunError, match=r"one process trains a run at a time, got .*, which another still trains; wait"),
    ):
        worker.train(None, tmp_path, None, None, 0, None)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
