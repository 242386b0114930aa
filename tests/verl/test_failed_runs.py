"""Failed rollouts, workers and coordinators in verl: work is tried again or dropped, reported, and never hangs."""

import pytest

from tests.verl.runs import FAULTY, HORA, allocated, groups_of

AR3PO = "{name: ar3po, stages: 2, rollouts_per_stage: 2}"


def run_with_faults(train, folder, faults, *more, allocator=HORA, **settings):
    (folder / "records" / "faults").mkdir(parents=True)
    for fault in faults:
        (folder / "records" / "faults" / fault).touch()
    done = train(allocated(allocator, *FAULTY, *more, **settings), folder=folder)
    assert done.status == 0, done.output[-5000:]
    return done


def test_a_rollout_that_raises_is_tried_again(train, tmp_path):
    """A prompt of the second step always fails. It is dropped, and the others are trained on."""
    done = run_with_faults(train, tmp_path, ["fails_1.0", "fails_2.0", "fails_7"])
    first, second = done.metrics
    assert first["allocation/errors"] == 2 and first["allocation/retried"] == 2
    assert first["allocation/failed"] == 0 and first["allocation/rows"] == 16
    assert {own[0]["index"] for own in groups_of(done.rows(2)).values()} == {4, 5, 6}
    assert second["allocation/failed"] >= 2


def test_a_prompt_that_always_fails_is_dropped_and_the_others_are_trained_on(train, tmp_path):
    done = run_with_faults(train, tmp_path, ["fails_3"], allocator=AR3PO)
    assert {own[0]["index"] for own in groups_of(done.rows(1)).values()} == {0, 1, 2}
    assert {own[0]["index"] for own in groups_of(done.rows(2)).values()} == {4, 5, 6, 7}
    assert done.metrics[0]["allocation/failed"] >= 2 and done.metrics[1]["allocation/failed"] == 0
    assert "this rollout fails" in done.output


def test_stragglers_are_given_up_at_the_deadline(train, tmp_path):
    done = run_with_faults(train, tmp_path, ["hangs_0.0", "hangs_5.0"], deadline_seconds=4)
    for metrics in done.metrics:
        assert metrics["allocation/expired"] == 1 and metrics["allocation/failed"] == 1
        assert metrics["allocation/rows"] == 15 and metrics["allocation/padding"] == 1


def test_another_worker_takes_the_rows_of_one_that_dies(train, tmp_path):
    workers = "actor_rollout_ref.rollout.agent.num_workers=2"
    done = run_with_faults(train, tmp_path, ["kills_worker_2.0", "kills_worker_5.0"], workers)
    assert [metrics["allocation/rollouts"] for metrics in done.metrics] == [16, 16]
    assert [metrics["allocation/failed"] for metrics in done.metrics] == [0, 0]
    assert done.metrics[0]["allocation/reassigned"] == 2


def test_the_only_worker_is_waited_for_when_it_dies(train, tmp_path):
    done = run_with_faults(train, tmp_path, ["kills_worker_1.0"])
    assert [metrics["allocation/failed"] for metrics in done.metrics] == [0, 0]
    assert done.metrics[0]["allocation/reassigned"] == 4


@pytest.mark.parametrize("allocator", [HORA, AR3PO])
def test_the_coordinator_goes_on_after_it_was_killed(train, tmp_path, allocator):
    done = run_with_faults(train, tmp_path, ["kills_coordinator_2.0", "kills_coordinator_6.0"], allocator=allocator)
    whole = train(allocated(allocator))
    assert done.output.count("The coordinator was restarted") == 2
    for step, mine, other in zip((1, 2), done.metrics, whole.metrics, strict=True):
        assert mine["allocation/rollouts"] == other["allocation/rollouts"] and mine["allocation/failed"] == 0
        # no rollout was sampled twice: what is trained on is what an undisturbed run trains on
        seen = [
            sorted((row["index"], row["responses"], row["advantages"]) for row in run.rows(step))
            for run in (done, whole)
        ]
        assert seen[0] == seen[1]


def test_an_allocators_error_ends_the_run_with_its_message(train, tmp_path):
    reward = "reward.custom_reward_function.name=compute_graded"
    done = train(allocated(HORA, reward), folder=tmp_path)
    assert done.status != 0
    assert "rewards must be 0 or 1 for hora" in done.output


def test_a_run_whose_coordinator_is_gone_for_good_ends(train, tmp_path):
    (tmp_path / "records" / "faults").mkdir(parents=True)
    (tmp_path / "records" / "faults" / "ends_coordinator_2.0").touch()
    done = train(allocated(HORA, *FAULTY), folder=tmp_path, seconds=120)
    assert done.status not in (0, -9)
    assert "The coordinator is gone" in done.output
