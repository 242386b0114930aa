"""One process at a time in the folder of a run, and one run's settings."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from apportion.runs.folder import check_settings, environment_with, hold_folder, hold_lock, read_settings, write_run
from apportion.toml import ConfigError
from tests.cases import refuse_lines, settings_of

HOLD = """
import sys, time
from pathlib import Path
from apportion.runs.folder import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def other_process(lock, seconds):
    """Start a process that holds ``lock`` for so many seconds."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_one_process_at_a_time_holds_a_lock(tmp_path):
    lock = tmp_path / "lock"
    with hold_lock(lock):
        with pytest.raises(BlockingIOError), hold_lock(lock):
            pass
        said = other_process(lock, 0).communicate()
        assert "BlockingIOError" in said[1] and not said[0]
    assert other_process(lock, 0).communicate() == ("held\n", "")


def test_the_lock_of_a_process_that_was_killed_is_free_at_once(tmp_path):
    lock = tmp_path / "lock"
    other = other_process(lock, 60)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError), hold_lock(lock):
        pass
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with hold_lock(lock):
        pass


def test_a_folder_that_another_run_holds_is_refused_in_one_line(tmp_path):
    with (
        hold_folder(tmp_path / "runs" / "quick", "study"),
        pytest.raises(ConfigError, match=r"one process trains a study at a time, got .*quick, which another trains; "),
        hold_folder(tmp_path / "runs" / "quick", "study"),
    ):
        pass


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            lambda folder: folder.write_text(""),
            r"a study needs a folder that it can write to, got .*quick \(File exists\)",
        ),
        (lambda folder: folder.symlink_to(folder), r"a study needs a folder that it can write to, got .*quick \("),
        (lambda folder: (folder / "lock").mkdir(parents=True), r"quick/lock must be a file, got a folder; remove it"),
        (lambda folder: (folder.mkdir(), os.mkfifo(folder / "lock")), r"quick/lock must be a file, got a named pipe"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path, damage, problem):
    folder = tmp_path / "quick"
    damage(folder)
    with pytest.raises(ConfigError, match=problem) as caught, hold_folder(folder, "study"):
        pass
    assert "\n" not in str(caught.value)
    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()  # the remedy
    with hold_folder(folder, "study"):
        pass


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc, in which not even root makes files")
def test_a_folder_that_cannot_be_written_is_refused_in_one_line():
    for folder in (Path("/proc/self"), Path("/proc/self/quick")):
        with pytest.raises(ConfigError, match="needs a folder that it can write to"), hold_folder(folder, "study"):
            pass


def test_a_lock_is_waited_for(tmp_path):
    lock = tmp_path / "lock"
    other = other_process(lock, 1)
    assert other.stdout.readline() == "held\n"
    with hold_lock(lock, wait_seconds=60):
        assert other.communicate(timeout=60)[1] == ""


@pytest.mark.parametrize("damage", [lambda path: path.write_text("seeds = [0"), os.mkfifo, lambda path: path.mkdir()])
def test_settings_that_are_damaged_are_refused_in_one_line(tmp_path, damage):
    path = tmp_path / "config.toml"
    damage(path)
    with pytest.raises(ConfigError, match=r"config\.toml.*; restore .* or delete .* to start again") as caught:
        read_settings(path)
    assert "\n" not in str(caught.value)


def test_settings_that_were_written_can_be_compared(tmp_path):
    settings = {"seeds": (0, 1), "name": None, "training": {"rate": 1e-3, "steps": 5}}
    write_run(tmp_path / "config.toml", settings, environment_with(["numpy"]) | {"processes": 2})
    started = tomllib.loads((tmp_path / "config.toml").read_text())
    check_settings(tmp_path, started, settings, "stop")
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert {"python", "platform", "cores", "apportion", "numpy", "processes"} == environment.keys()


def test_settings_that_differ_are_named(tmp_path):
    wrong = r"""
        seeds = [0], training = { rate = 2, steps = 5 } => with training.rate = 1, got 2; stop
        seeds = [0], training = { rate = 1 }            => with training.steps = 5, got nothing; stop
        seeds = [0], training = { rate = 1, steps = 5 }, kl = 0.1 => with kl = nothing, got 0.1; stop
        seeds = [1], training = {}                      => with seeds = \[0\], got \[1\], and 2 more; stop
    """
    started = {"seeds": [0], "training": {"rate": 1, "steps": 5}}
    refuse_lines(lambda given: check_settings(tmp_path, started, settings_of(given), "stop"), wrong)


def test_settings_that_may_change_are_not_compared(tmp_path):
    check_settings(tmp_path, {"training": {"log": 1}}, {"training": {"log": 2}}, "stop", {"training.log"})
