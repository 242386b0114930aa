"""Damaged folders of a study: one line says what is wrong."""

import multiprocessing.spawn
import os
import re
import shutil
import signal

import pytest

from apportion.config import ConfigError
from apportion.lab import command
from apportion.lab.study.design import read_pools, read_study
from tests import warm
from tests.lab.states import STUDY
from tests.lab.test_processes import start_training
from tests.processes import MARK, nothing_left

pytestmark = [pytest.mark.xdist_group("commands"), pytest.mark.slow]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, small_base_folder):
    """Return the working directory of a study that was stopped in the middle of both runs."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "quick.toml").write_text(STUDY.format(base=small_base_folder))
    with start_training(folder, program=warm.python()) as started:
        started.process.send_signal(signal.SIGTERM)
        code, said, errors = started.ended()
        assert (code, errors) == (143, "") and started.nothing_left()
    assert "Stopping: each run ends its step and saves a checkpoint." in said
    assert said.endswith(
        "Stopped; every run is saved at its last step. To go on: apportion lab --name quick --resume\n"
    )
    return folder


@pytest.fixture
def folder(tmp_path, stopped, monkeypatch):
    """Return a copy of the stopped study's working directory, and go there."""
    shutil.copytree(stopped, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")
    return tmp_path / "study"


@pytest.fixture(autouse=True)
def _warm(monkeypatch):
    """Let the runs of a study that is resumed in this process start quickly."""
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(warm.python()))


def resume(*given):
    study = read_study(*(given or (None, [], "quick", True)))
    return command.run_study(study, read_pools(study), dry_run=False)


def replace_by(make):
    """Return what puts something else in the place of a file."""

    def damage(path):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return damage


a_folder, a_pipe = replace_by(lambda path: path.mkdir()), replace_by(os.mkfifo)
REFUSED = {
    "settings that are torn": ("config.toml", lambda path: os.truncate(path, 300), "must be TOML, .*; restore"),
    "settings that are a pipe": ("config.toml", a_pipe, "config.toml must be a file, got a named pipe; restore"),
    "a report that is a folder": ("report.md", a_folder, "report.md must be a file, got a folder; remove it"),
    "a summary that is a pipe": ("summary.json", a_pipe, "summary.json must be a file, got a named pipe; remove"),
}
"""Metrics are damaged in training/test_metrics.py, and locks of every kind in tests/runs/test_folder.py."""


@pytest.mark.parametrize("case", REFUSED)
def test_damage_is_refused_in_one_line_before_anything_is_trained(folder, case):
    name, damage, problem = REFUSED[case]
    damage(folder / "runs" / "quick" / name)
    with pytest.raises(ConfigError, match=problem) as caught:
        resume()
    assert "\n" not in str(caught.value)


def test_runs_without_settings_are_refused(folder):
    (folder / "runs/quick/config.toml").unlink()
    with pytest.raises(ConfigError, match=r"runs/quick/config.toml does not exist; start it without --resume"):
        resume()
    with pytest.raises(
        ConfigError, match=r"quick holds runs such as .*, and config.toml must say how .*, got none; restore"
    ):
        resume(folder / "quick.toml", [], None, False)


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
from apportion.__main__ import main
sys.argv[1:] = ["lab", "--name", "quick", "--resume", "--set", "processes=1"]
main()
"""
"""No file may grow beyond 2,000 bytes."""


def test_a_disk_that_gets_full_is_told_in_one_line(folder):
    """The command has imported what it needs; its run is a process that starts as usual."""
    limited = warm.forked(["-c", FULL], folder, **{MARK: "full disk"})
    assert limited.returncode == 1 and "Traceback" not in limited.stdout + limited.stderr
    assert re.search("could not be written .*File too large", limited.stdout.splitlines()[-1])
    assert nothing_left("full disk")
