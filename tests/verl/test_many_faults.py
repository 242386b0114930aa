"""Real runs of verl, synchronous and asynchronous, with many faults of different kinds in each."""

import pytest

from tests.verl.runs import FAULTY
from tests.verl.test_failed_runs import TWO, assert_sound
from tests.verl.test_separate import SEPARATE, check_step

FAULTS = (
    "fails_0.0",
    "reward_is_nan_1.0",
    "reward_is_text_2.0",
    "reward_fails_3.0",
    "kills_worker_4.0",
    "stops_worker_writing_5.0",
    "kills_rewarder_6.0",
    "hangs_7.0",
    "kills_worker_committing_8.0",
    "kills_worker_committed_9.0",
    "hangs_10.0",
    "stops_worker_committed_11.0",
)
"""Faults by the prompt that they strike, one rollout each."""

STEPS = 5
RULE = (
    "allocation=hora",
    "allocation.allocator.pre_rollouts=2",
    "allocation.allocator.high=8",
    "allocation.silent_seconds=5",
    "allocation.deadline_seconds=15",
)


@pytest.mark.soak  # two minutes each
@pytest.mark.parametrize("mode", [("trainer.v1.trainer_mode=sync",), SEPARATE], ids=["sync", "separate_async"])
def test_a_run_with_many_faults_trains_on_the_right_rows(train, tmp_path, mode):
    (tmp_path / "records" / "faults").mkdir(parents=True)
    for fault in FAULTS:
        (tmp_path / "records" / "faults" / fault).touch()
    more = ("reward.custom_reward_function.name=compute_faulty", "reward.num_workers=2")
    steps = f"trainer.total_training_steps={STEPS}"
    own = [each for each in mode if not each.startswith("trainer.total_training_steps")]
    settings = (*RULE, *FAULTY, TWO, *more, *own, steps)
    done = train(settings, folder=tmp_path, main="apportion.verl", seconds=500)
    assert done.status == 0, done.output[-5000:]
    assert [metrics["step"] for metrics in done.metrics] == list(range(1, STEPS + 1))
    assert not list((tmp_path / "records" / "faults").iterdir())  # all of them happened
    for step in range(1, STEPS + 1):
        if mode is SEPARATE:
            check_step(done.rows(step))
        else:
            assert_sound(done, step)
