"""A log that is read while it is written: new steps are seen once, whole, and also after a run has resumed."""

import time
from importlib import import_module

import numpy as np
import pytest

from apportion import Rollout, Uniform
from apportion.records import (
    Follower,
    LoggedStep,
    LogNews,
    RecordError,
    follow,
    read_log,
    remove_steps_after,
    resume_log,
    start_log,
    write_step,
    write_steps,
)
from apportion.records.step_summary import summaries
from tests.builders import finished, make_batch, make_prompts
from tests.commands import invoke, printed

pytest.importorskip("pyarrow")


def make_step(step, outcomes=((1, 0), (1, 1), (0, 0))):
    batch = make_batch([list(each) for each in outcomes])
    return LoggedStep(step, batch, Uniform(2).groups(batch))


def write(folder, *steps, **given):
    write_steps(folder, [make_step(step, **given) for step in steps])


def steps_of(news):
    return [step for record in news.records for step in np.unique(record.step).tolist()]


def test_only_new_steps_are_read(tmp_path):
    follower = Follower(tmp_path / "log")
    assert steps_of(follower.look()) == []
    start_log(tmp_path / "log")
    write(tmp_path / "log", 1)
    write(tmp_path / "log", 2, 3)
    assert steps_of(follower.look()) == [1, 2, 3]
    assert steps_of(follower.look()) == []
    write(tmp_path / "log", 4)
    news = follower.look()
    assert (steps_of(news), news.last_step, news.removed_from) == ([4], 4, None)


def test_steps_of_a_resumed_run_are_removed_and_come_again(tmp_path):
    run = start_log(tmp_path)
    for step in range(1, 5):
        write(tmp_path, step)
    follower = Follower(tmp_path)
    follower.look()
    resume_log(tmp_path, run, 2)
    news = follower.look()
    assert (steps_of(news), news.removed_from) == ([], 3)
    write(tmp_path, 3, outcomes=[[1]])
    assert steps_of(follower.look()) == [3]
    write(tmp_path, 3, outcomes=[[0]])
    news = follower.look()
    assert (steps_of(news), news.removed_from, news.records[0].totals.tolist()) == ([3], 3, [0])


def test_following_ends_at_a_step_or_a_time(tmp_path):
    write(tmp_path, 1)
    assert [steps_of(news) for news in follow(tmp_path, until_step=1)] == [[1]]
    began = time.monotonic()
    assert [*map(steps_of, follow(tmp_path / "none", every_seconds=0.05, timeout_seconds=0.2))][-1] == []
    assert 0.2 <= time.monotonic() - began < 10
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="a rollout log is a folder, got the file"):
        next(follow(tmp_path / "file"))


def test_a_file_of_several_steps_is_cut_at_its_end_alone(tmp_path):
    write(tmp_path, 1, 2, 3)
    write(tmp_path, 4)
    write(tmp_path, 5, 6)
    assert read_log(tmp_path)["step"].to_pylist() == [step for step in range(1, 7) for _ in range(6)]
    with pytest.raises(RecordError, match=r"must go on after the last step of a file, got step 2 in .*000001-000003"):
        remove_steps_after(tmp_path, 2)
    remove_steps_after(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000004.parquet", "steps-000001-000003.parquet"]
    write(tmp_path, 3, 4)
    with pytest.raises(RecordError, match=r"000003-000004\.parquet must have later steps than .*000001-000003\.parq"):
        read_log(tmp_path)


def test_a_step_is_summarised(tmp_path):
    write(tmp_path, 1, outcomes=[[1, 0], [1, 1], [0, 0], [0, 0, 0, 0]])
    (record,) = Follower(tmp_path).look().records
    (found,) = summaries(record)
    assert (found.step, found.groups, found.rollouts, found.success) == (1, 4, 10, 0.3)
    assert (found.all_right, found.all_wrong, found.mixed) == (1, 2, 0.25)
    assert (found.hard, found.middle, found.easy, found.tokens) == (3, 2, 2, None)
    assert abs(found.written - time.time()) < 60


def test_a_log_of_hashes_keeps_no_text_and_tells_answers_apart(tmp_path):
    own = [Rollout(answer=answer, completion=f"so it is {answer}") for answer in ("42", "7", "42", None)]
    batch = finished(make_prompts(1), [own])
    write_step(tmp_path, 1, batch, Uniform(4).groups(batch), log_text="hashes")
    table = read_log(tmp_path)
    assert table["prompt"].null_count == 4 and set(table["prompt_id"].to_pylist()) == {batch.prompts[0].id}
    found = table["answer"].to_pylist()
    assert found[0] == found[2] != found[1] and found[3] is None and len(found[0]) == 32
    assert all(len(each) == 32 for each in table["completion"].to_pylist())
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"so it is" not in content and batch.prompts[0].text.encode() not in content
    with pytest.raises(ValueError, match="log_text must be one of full, hashes, got 'some'"):
        write_step(tmp_path, 2, batch, Uniform(4).groups(batch), log_text="some")


def test_watch_ends_with_a_line_if_nothing_comes(tmp_path):
    found = invoke("watch", tmp_path / "none", "--timeout", 0.2)
    assert found.exit_code == 2 and "must have a step, got none" in found.stderr
    write(tmp_path, 1)
    found = invoke("watch", tmp_path, "--timeout", 0.2, "--until-step", 2)
    assert found.exit_code == 1 and "must have step 2, got 1" in found.stderr


def test_watch_goes_on_when_a_run_starts_again_from_its_first_step(tmp_path, monkeypatch):
    """Also after the time in which a log must have its first step."""
    write(tmp_path, 1)
    (record,) = Follower(tmp_path).look().records
    news = [LogNews((record,)), LogNews(removed_from=1), LogNews((record,))]
    command = import_module("apportion.cli.watch")  # the package has the function under this name
    monkeypatch.setattr(command, "follow", lambda log, **settings: news)
    monkeypatch.setattr(command, "MOST_WAIT_SECONDS", 0.0)
    header, first, removed, again = printed("watch", tmp_path).splitlines()
    assert first == again and header.split()[:2] == ["step", "success"] and "Steps from 1 on were removed" in removed


@pytest.mark.parametrize("name", ["1.jsonl", "completions/completions_00001.parquet", "events.out.tfevents.1.host"])
def test_a_folder_with_the_log_of_another_tool_is_refused_at_once(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(RecordError, match=r"must be a rollout log of apportion, got one with .*; pass the log's own"):
        Follower(tmp_path).look()


def test_watch_names_a_run_that_its_shaping_makes_sick(tmp_path):
    """Wrong answers are paid more at each step. A run without shaping has no such line."""
    for name, paid in (("shaped", 0.02), ("plain", 0.0)):
        start_log(tmp_path / name)
        rng = np.random.default_rng(0)
        for step in range(30):
            right = rng.random((6, 4)) < np.repeat([0.0, 0.5], 3)[:, None]
            rewards = right + paid * (step + 5 * rng.random((6, 4)))
            rollouts = [
                [Rollout(bool(o), reward=float(r)) for o, r in zip(*own, strict=True)]
                for own in zip(right, rewards, strict=True)
            ]
            batch = finished(make_prompts(6), rollouts)
            write_steps(tmp_path / name, [LoggedStep(step, batch, Uniform(4).groups(batch))])
        lines = printed("watch", tmp_path / name, "--until-step", 29).splitlines()
        sick = [place for place, line in enumerate(lines) if line.startswith("SICK (shaping): from step 0 to ")]
        assert len(sick) == (name == "shaped")
