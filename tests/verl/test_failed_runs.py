"""Rollouts, rewards, workers and trainers that fail or fall silent in verl: work is done again or dropped, and the run
goes on or ends with an error, within bounds.
"""

import pytest

from tests.verl.cpu.assets import EASE
from tests.verl.runs import FAULTY, HORA, SAVED, allocated, groups_of, scored_again, trained
from tests.verl.test_harness import assert_no_process_is_left

TWO = "actor_rollout_ref.rollout.agent.num_workers=2"
STEPS = "trainer.total_training_steps={}"
AR3PO = "{name: ar3po, stages: 2, rollouts_per_stage: 2}"


def run_with_faults(train, folder, faults, *more, allocator=HORA, **settings):
    (folder / "records" / "faults").mkdir(parents=True)
    for fault in faults:
        (folder / "records" / "faults" / fault).touch()
    done = train(allocated(allocator, *FAULTY, *more, **settings), folder=folder)
    assert done.status == 0, done.output[-5000:]
    return done


def assert_sound(done, step, batch=4):
    """No row of a step is wrong, of another step, or of a rollout that is in no group, and none is left over."""
    assert done.others(step) == []
    rows = trained(done.rows(step))
    assert {row["index"] for row in rows} == {index % 16 for index in range(batch * (step - 1), batch * step)}
    assert len({row["key"] for row in rows}) == len(rows)
    for row in rows:
        group = row["apportion"]
        assert sum(row["rm_scores"]) == scored_again(row, EASE) == group["rewards"][group["position"]]
    for own in groups_of(rows).values():
        assert sorted(row["apportion"]["position"] for row in own) == list(range(len(own[0]["apportion"]["rewards"])))


def test_a_rollout_that_raises_is_tried_again(train, tmp_path):
    """A prompt of the second step always fails. It is dropped, and the others are trained on."""
    done = run_with_faults(train, tmp_path, ["fails_1.0", "fails_2.0", "fails_7"])
    first, second = done.metrics
    assert first["allocation/errors"] == 2 and first["allocation/retried"] == 2
    assert first["allocation/failed"] == 0 and first["allocation/rows"] == 16
    assert {own[0]["index"] for own in groups_of(done.rows(2)).values()} == {4, 5, 6}
    assert second["allocation/failed"] >= 2


@pytest.mark.soak  # a prompt that always fails under HORA is in the test above
def test_a_prompt_that_always_fails_is_dropped_and_the_others_are_trained_on(train, tmp_path):
    done = run_with_faults(train, tmp_path, ["fails_3"], allocator=AR3PO)
    assert {own[0]["index"] for own in groups_of(done.rows(1)).values()} == {0, 1, 2}
    assert {own[0]["index"] for own in groups_of(done.rows(2)).values()} == {4, 5, 6, 7}
    assert done.metrics[0]["allocation/failed"] >= 2 and done.metrics[1]["allocation/failed"] == 0
    assert "this rollout fails" in done.output


@pytest.mark.soak  # test_deadlines has stragglers that are aborted
def test_stragglers_are_given_up_at_the_deadline(train, tmp_path):
    done = run_with_faults(train, tmp_path, ["hangs_0.0", "hangs_5.0"], deadline_seconds=4)
    for metrics in done.metrics:
        assert metrics["allocation/expired"] == 1 and metrics["allocation/failed"] == 1
        assert metrics["allocation/rows"] == 15 and metrics["allocation/padding"] == 1


def test_another_worker_takes_the_rows_of_one_that_dies_or_stops(train, tmp_path):
    """Before it samples, after it wrote its rows, in the middle of a commit, and before it says that it committed."""
    faults = (
        "stops_worker_1.0",
        "kills_worker_writing_6.0",
        "stops_worker_writing_9.0",
        "kills_worker_committing_14.0",
        "stops_worker_committed_1@5.0",
        "kills_worker_committed_6@6.0",
    )
    done = run_with_faults(train, tmp_path, faults, TWO, STEPS.format(6), silent_seconds=5)
    assert [metrics["allocation/rollouts"] for metrics in done.metrics] == [16] * 6
    assert [metrics["allocation/failed"] for metrics in done.metrics] == [0] * 6
    # usually the two prompts of the lost worker; one if its other prompt was committed already, and more than two if
    # the other worker, which takes them over, is not restarted yet from the step before
    reassigned = [metrics["allocation/reassigned"] for metrics in done.metrics]
    assert min(reassigned[:4]) >= 1, reassigned
    # none in the fifth step if the lost worker had told the trainer of the last prompt: the trainer goes on without it
    assert sum(reassigned[4:]) >= 1, reassigned
    for step in range(1, 7):
        assert_sound(done, step)
    assert done.output.count("was silent for") == 3
    # a step is longer by the silence, the time in which the other worker samples, and no restart is waited for
    assert all(metrics["timing_s/step"] < 5 + 20 for metrics in done.metrics)


@pytest.mark.soak  # a worker that is lost after its commit is in the test above, too
def test_what_a_lost_worker_committed_is_not_written_again(train, tmp_path):
    """It is lost after it told the trainer that its only prompt is done. The trainer goes on before others learn it."""
    faults = ("stops_worker_committed_0.0", "kills_worker_committed_5.0")
    small = ("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2")
    done = run_with_faults(train, tmp_path, faults, TWO, *small, STEPS.format(5), silent_seconds=5)
    assert done.output.count("others take over") == 2
    for step in range(1, 6):
        assert_sound(done, step, batch=2)


@pytest.mark.soak  # two workers lost at once are in the next test
def test_the_only_worker_is_waited_for_when_it_dies_or_stops(train, tmp_path):
    faults = ["kills_worker_1.0", "stops_worker_writing_5.0"]
    done = run_with_faults(train, tmp_path, faults, silent_seconds=5)
    assert [metrics["allocation/failed"] for metrics in done.metrics] == [0, 0]
    assert [metrics["allocation/reassigned"] for metrics in done.metrics] == [4, 4]
    assert_sound(done, 1)
    assert_sound(done, 2)


@pytest.mark.soak  # lost workers are in the test before; that rewards fail beside them is here alone
def test_workers_that_fail_in_a_validation_or_together_with_a_reward(train, tmp_path):
    """Both workers are lost during the validation before training, one dies while a reward raises twice."""
    faults = ["kills_worker_0.0", "stops_worker_2.0", "kills_worker_5.0", "reward_fails_6.0", "reward_fails_6.1"]
    validating = ("trainer.val_before_train=True", "trainer.test_freq=1")
    reward = "reward.custom_reward_function.name=compute_faulty"
    done = run_with_faults(train, tmp_path, faults, TWO, reward, *validating, silent_seconds=5)
    assert [each["step"] for each in done.metrics] == [0, 1, 2]
    assert all(any(name.startswith("val-core") for name in each) for each in done.metrics)
    second = done.metrics[2]
    assert second["allocation/reassigned"] == 2 and second["allocation/errors"] == 2
    assert second["allocation/failed"] == 0 and "this reward fails" in done.output
    assert_sound(done, 1)
    assert_sound(done, 2)


# a reward that is right at the second try is soaked, because the first test of this file has a rollout that is
@pytest.mark.parametrize("times", [pytest.param("0", marks=pytest.mark.soak), "012"])
def test_a_bad_reward_fails_its_rollout_alone(train, tmp_path, times):
    """One of each kind is tried again with success; three in a row of one prompt are a failed rollout."""
    kinds = enumerate(("nan", "inf", "none", "text", "list"))
    faults = [f"reward_is_{kind}_{index}.{time}" for index, kind in kinds for time in times]
    reward = "reward.custom_reward_function.name=compute_faulty"
    done = run_with_faults(train, tmp_path, faults, reward)
    assert sum(metrics["allocation/errors"] for metrics in done.metrics) == len(faults)
    assert "must return a finite number as score, got NaN" in done.output
    assert sum(metrics["allocation/failed"] for metrics in done.metrics) <= len(faults)
    assert_sound(done, 1)
    assert_sound(done, 2)


def test_a_run_whose_workers_are_gone_for_good_ends(train, tmp_path):
    (tmp_path / "records" / "faults").mkdir(parents=True)
    (tmp_path / "records" / "faults" / "ends_worker_2").touch()
    done = train(allocated(HORA, *FAULTY), folder=tmp_path, seconds=180)
    assert done.status not in (0, -9)
    assert "agent-loop workers must live, got none of 1" in done.output
    assert_no_process_is_left(tmp_path)


@pytest.mark.soak  # a minute of waiting; test_actor_watch has the watch, and the test above the end of a run
def test_a_run_whose_queue_dies_ends(train, tmp_path):
    """The trainer's requests to a dead queue never end, so its process is ended."""
    (tmp_path / "records" / "faults").mkdir(parents=True)
    (tmp_path / "records" / "faults" / "kills_queue_2").touch()
    done = train(allocated(HORA, *FAULTY), folder=tmp_path, seconds=180)
    assert done.status not in (0, -9)
    assert "TransferQueueController must live" in done.output
    assert_no_process_is_left(tmp_path)


def run_to_its_end(train, folder, fault, *more, **settings):
    """Return a run under our command with ``fault`` in its folder, and the seconds from the fault's line to its end."""
    (folder / "records" / "faults").mkdir(parents=True)
    (folder / "records" / "faults" / fault).touch()
    own = [f"allocation.{name}={value}" for name, value in settings.items()]
    done = train(["allocation=uniform", *own, *FAULTY, *more], folder=folder, main="apportion.verl", seconds=240)
    assert done.status not in (0, -9), done.output[-5000:]
    assert_no_process_is_left(folder)
    return done


@pytest.mark.soak  # a minute of waiting; test_actor_watch has the watch
@pytest.mark.parametrize("moment", ["sleeping", "loading"])
def test_a_run_whose_server_stops_ends_with_the_cause(train, tmp_path, moment):
    """verl would wait for ever. The trainer's wait is interrupted, so that the cause is the run's own error."""
    done = run_to_its_end(train, tmp_path, f"stops_server_{moment}", wait_seconds=60)
    assert "tiny_server_0 has not answered for 8 s" in done.output
    assert "RuntimeError: tiny_server_0 must answer, because rollouts are sampled there" in done.output[-2000:]
    place = "on_sample_end: self.checkpoint_manager.sleep_replicas()" if moment == "sleeping" else "update_weights("
    assert place in done.output[-2000:]


@pytest.mark.soak  # two minutes of waiting; test_workers has the watch
def test_a_run_whose_training_worker_stops_ends_with_the_line_at_which_the_trainer_waits(train, tmp_path):
    """It cannot be asked whether it lives, because it answers nothing while it works."""
    done = run_to_its_end(train, tmp_path, "stops_server_sending", wait_seconds=60)
    line = "on_step_end: self.checkpoint_manager.update_weights(self.global_steps)"
    assert f"RuntimeError: the trainer must leave {line} within 60 seconds, got 60 s" in done.output[-2000:]


@pytest.mark.soak  # test_actor_watch has the watch
def test_a_run_whose_server_dies_ends_with_the_cause(train, tmp_path):
    done = run_to_its_end(train, tmp_path, "kills_server_sleeping")
    assert "tiny_server_0" in done.output


def test_a_reward_worker_that_dies_is_restarted_and_no_rollout_fails(train, tmp_path):
    (tmp_path / "records" / "faults").mkdir(parents=True)
    (tmp_path / "records" / "faults" / "kills_rewarder_1.0").touch()
    more = ("reward.num_workers=2", "reward.custom_reward_function.name=compute_faulty", STEPS.format(3))
    done = train(["allocation=uniform", *more], folder=tmp_path, main="apportion.verl")
    assert done.status == 0, done.output[-5000:]
    assert [metrics["allocation/errors"] for metrics in done.metrics] == [0] * 3
    assert not list((tmp_path / "records" / "faults").iterdir())  # it died; that this is told test_actor_watch shows


def test_a_run_whose_trainer_dies_ends_and_resumes_as_if_nothing_had_been(train, tmp_path):
    """Nothing is learned twice, and nothing is forgotten."""
    saving = (TWO, STEPS.format(4), "trainer.save_freq=1", "trainer.resume_mode=auto", SAVED)
    (tmp_path / "records" / "faults").mkdir(parents=True)
    for index in range(16):
        (tmp_path / "records" / "faults" / f"kills_trainer_{index}@3").touch()
    killed = train(allocated(HORA, *FAULTY, *saving), folder=tmp_path)
    assert killed.status not in (0, -9) and "ActorDiedError" in killed.output
    died = (tmp_path / "records" / "trainer_killed").stat().st_mtime
    assert (tmp_path / "output.log").stat().st_mtime - died < 20
    assert_no_process_is_left(tmp_path)

    resumed, whole = train(allocated(HORA, *saving), folder=tmp_path), train(allocated(HORA, *saving))
    assert resumed.status == 0, resumed.output[-5000:]
    assert [each["step"] for each in resumed.metrics] == [3, 4]
    for step, mine, other in zip((3, 4), resumed.metrics, whole.metrics[2:], strict=True):
        seen = [
            sorted((row["index"], row["responses"], row["advantages"]) for row in run.rows(step))
            for run in (resumed, whole)
        ]
        assert seen[0] == seen[1]
        for measure in ("rollouts", "prompts", "predicted_success"):
            assert mine[f"allocation/{measure}"] == pytest.approx(other[f"allocation/{measure}"])


def test_an_allocators_error_ends_the_run_with_its_message(train, tmp_path):
    reward = "reward.custom_reward_function.name=compute_graded"
    done = train(allocated(HORA, reward), folder=tmp_path)
    assert done.status != 0
    assert "rewards must be 0 or 1 for hora" in done.output
