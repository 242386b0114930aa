"""Damaged folders of jobs: one line says what is wrong, and what it says to do leads to the same results."""

import os
import shutil
import signal

import pytest
import torch

from apportion.config import ConfigError
from tests import warm
from tests.processes import Command
from tests.soak import case
from tests.trl.jobs.small import HELD_OUT, make_files, make_job, train
from tests.trl.jobs.test_job import rollouts, weights

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def stopped(folder, policy, kind):
    """Run a job in ``folder`` that the signal ``kind`` stops behind its first checkpoint, and return its end."""
    make_files(folder)
    (folder / "stop").write_text(f"90 {kind}")
    with Command(
        folder, "trl", make_job(folder, policy, evaluation=HELD_OUT), program=warm.python(), **OFFLINE
    ) as command:
        ended = command.ended()
        assert command.nothing_left()
    (folder / "stop").unlink()
    return ended


@pytest.fixture(scope="module")
def terminated(policy, tmp_path_factory):
    """Return the working directory of a job that SIGTERM stopped behind its first checkpoint, and its end."""
    folder = tmp_path_factory.mktemp("terminated")
    return folder, stopped(folder, policy, "SIGTERM")


@pytest.fixture
def folder(terminated, tmp_path, monkeypatch):
    """Return a copy of the terminated job's working directory, and go there."""
    shutil.copytree(terminated[0], tmp_path / "job")
    monkeypatch.chdir(tmp_path / "job")
    return tmp_path / "job"


def resume():
    return train(None, name="job", resume=True)


def expect_the_results_of(whole, folder):
    assert rollouts(folder / "runs/job") == rollouts(whole)
    went_on, at_once = weights(folder / "runs/job/model"), weights(whole / "model")
    assert all(torch.equal(went_on[name], at_once[name]) for name in at_once)


def test_a_terminated_job_says_how_to_continue_and_does(terminated, folder, whole):
    code, said, errors = terminated[1]
    assert code == 143 and "Traceback" not in said + errors
    line = "Stopped in step 3. To continue from step 2: apportion trl --name job --resume"
    assert line in said
    assert resume() == 0
    expect_the_results_of(whole, folder)


def test_a_killed_job_is_resumed_to_the_same_results(policy, tmp_path, monkeypatch, whole):
    code, _, _ = stopped(tmp_path, policy, "SIGKILL")
    assert code == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    assert resume() == 0
    expect_the_results_of(whole, tmp_path)


REFUSED = (
    ("job.toml", lambda path: os.truncate(path, 150), "must be TOML, .*; restore .* or delete"),
    ("job.toml", lambda path: (path.unlink(), os.mkfifo(path)), "job.toml must be a file, got a named pipe; restore"),
    ("environment.json", lambda path: os.truncate(path, 9), "delete it to go on"),
    ("environment.json", lambda path: path.write_text("[]"), "delete it to go on"),
    ("lock", lambda path: (path.unlink(), path.mkdir()), "lock must be a file, got a folder; remove it"),
)


def test_damage_is_refused_in_one_line_before_anything_is_trained(terminated, tmp_path, monkeypatch):
    for number, (name, damage, problem) in enumerate(REFUSED):
        shutil.copytree(terminated[0], folder := tmp_path / str(number))
        monkeypatch.chdir(folder)
        damage(folder / "runs" / "job" / name)
        with pytest.raises(ConfigError, match=problem) as caught:
            resume()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "room"),
    [
        case(name, room, suite=(turn, place) in {(0, 0), (1, 1)})
        for turn, name in enumerate(("trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt"))
        for place, room in enumerate((0, 30))
    ],
)
def test_a_checkpoint_that_is_torn_is_named_and_its_remedy_leads_to_the_same_results(folder, whole, name, room, capsys):
    checkpoint = folder / "runs/job/checkpoints/checkpoint-2"
    os.truncate(checkpoint / name, room)
    assert resume() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("runs/job/checkpoints/checkpoint-2 cannot be loaded (")
    assert last.endswith("). Delete it to continue from the one before: apportion trl --name job --resume")
    shutil.rmtree(checkpoint)
    assert resume() == 0
    expect_the_results_of(whole, folder)


def test_a_dead_verifier_ends_a_job_with_one_line_and_once_mended_the_job_goes_on(
    tmp_path, policy, monkeypatch, capsys
):
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    mended = (tmp_path / "verifier.py").read_text()
    (tmp_path / "verifier.py").write_text("def judged(completion, gold):\n    return None\n")
    assert train(make_job(tmp_path, policy)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "completions must have rewards, got none for 32 of the latest 32 (at most 50% may have none)"
    )
    assert last.endswith("To continue: apportion trl --name job --resume")
    (tmp_path / "verifier.py").write_text(mended)
    assert resume() == 0


def test_a_disk_that_is_full_is_told_in_one_line(folder):
    """No file may grow beyond 2,000 bytes."""
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    limit += "from apportion.__main__ import main\nsys.argv[1:] = ['trl', '--name', 'job', '--resume']\nmain()"
    (folder / "limited.py").write_text(limit)
    with Command(folder, python=("limited.py",), program=warm.python(), **OFFLINE) as limited:
        code, said, errors = limited.ended()
        assert limited.nothing_left()
    assert code in (1, 2) and "Traceback" not in said + errors, errors
