"""Rollouts, rewards, requests and workers that fail in verl: a run goes on or ends with an error, within bounds.

``test_fault_table`` has many more faults in one process, ``test_selection`` a trainer that dies.
"""

import json

import pytest

from apportion.verl.worker import ENDING_SECONDS
from tests.verl.harness import assert_no_process_is_left
from tests.verl.runs import FAULTY, trained, whole_groups

DEADLINE = 6
RULE = (
    "allocation=hora",
    "allocation.allocator.pre_rollouts=2",
    "allocation.allocator.high=8",
    "allocation.silent_seconds=5",
    f"allocation.deadline_seconds={DEADLINE}",
)
FAULTS = (
    *("fails_0.0", "reward_is_nan_1.0", "reward_is_text_2.0", "reward_fails_3.0"),
    *("kills_worker_4.0", "kills_rewarder_6.0", "hangs_7.0"),
    *("stalls_10.0", "clings_11.0"),
    "stops_worker_writing_12.0",  # in a step without a killed worker, which might be the same one
)
"""Faults by the prompt that they strike, one rollout each, in steps 1, 2, 3 and 4."""


def ask(folder, *faults):
    (folder / "records" / "faults").mkdir(parents=True)
    for fault in faults:
        (folder / "records" / "faults" / fault).touch()


def assert_sound(done, step, dropped):
    """No row of a step is wrong, of another step, or of a rollout that is in no group, and none is left over."""
    assert done.others(step) == []
    rows = trained(done.rows(step))
    assert {row["index"] for row in rows} == {index % 16 for index in range(4 * step - 4, 4 * step)} - {*dropped}
    assert len({row["key"] for row in rows}) == len(rows)
    whole_groups(rows)


def test_a_run_with_many_faults_trains_on_the_right_rows_and_ends_without_workers(train, tmp_path):
    """In step 4 a prompt always fails, and is dropped. In step 5 both workers are gone for good."""
    ask(tmp_path, *FAULTS, "fails_13@4", *(f"ends_worker_{index}@5" for index in range(4)))
    workers = ("actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2")
    reward = "reward.custom_reward_function.name=compute_faulty"
    settings = (*RULE, *FAULTY, *workers, reward, "trainer.total_training_steps=5")
    done = train(settings, folder=tmp_path, main="apportion.verl", seconds=500, fails=True)
    assert done.status != -9 and "agent-loop workers must live, got none of 2" in done.output
    assert_no_process_is_left(tmp_path)
    assert not list((tmp_path / "records" / "faults").glob("*.0"))  # all of them happened
    assert [metrics["step"] for metrics in done.metrics] == [1, 2, 3, 4]
    for step in range(1, 5):
        assert_sound(done, step, dropped=[13] * (step == 4))

    first, second, third, fourth = (
        {name.removeprefix("allocation/"): value for name, value in metrics.items()} for metrics in done.metrics
    )
    assert first["errors"] == first["retried"] == 4 and first["failed"] == 0 and first["rows"] == 16
    assert "must return finite numbers, got nan" in done.output
    assert second["reassigned"] >= 1
    assert second["rollouts"] == 16  # what hangs is given up late, or lost with its worker
    assert third["errors"] == third["expired"] == third["failed"] == 2 and third["rows"] == 14
    assert DEADLINE + ENDING_SECONDS < third["timing_s/gen"] < DEADLINE + ENDING_SECONDS + 10
    assert "1 of the sessions of " in done.output  # the one that ignores its first cancellation
    assert (tmp_path / "records" / "clung").exists()  # and is cancelled again when its prompt is committed
    assert fourth["failed"] >= 2 and "this rollout fails" in done.output
    assert fourth["reassigned"] >= 1 and "was silent for" in done.output
    lines = (tmp_path / "records" / "sleeps_0.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["live"] for line in lines} == {0} and json.loads(lines[-1])["cancelled"] == 1


@pytest.mark.soak  # two minutes of waiting; test_fault_table has what stops or dies at all other moments
def test_a_run_whose_server_stops_ends_with_the_cause(train, tmp_path):
    """verl would wait for ever. The trainer's wait is interrupted, so that the cause is the run's own error."""
    ask(tmp_path, "stops_server_sleeping")
    settings = ["allocation=uniform", "allocation.wait_seconds=60", *FAULTY]
    done = train(settings, folder=tmp_path, main="apportion.verl", fails=True)
    for said in ("tiny_server_0 must answer, because rollouts are sampled", "sleep_replicas()"):
        assert said in done.output[-2000:], done.output[-5000:]
    assert_no_process_is_left(tmp_path)
