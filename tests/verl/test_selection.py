"""Selection in verl's own trainer, also after the trainer's death."""

import pytest

from tests.verl.harness import assert_no_process_is_left
from tests.verl.runs import FAULTY, trained

SELECTED = (
    "allocation=hora",
    "allocation.allocator.pre_rollouts=2",
    "allocation.allocator.high=8",
    "allocation.selection={name: spo, predictor: counts, importance_weights: true}",
    "trainer.save_freq=1",
    "trainer.total_training_steps=4",
    "trainer.resume_mode=auto",
)


def test_a_run_whose_trainer_dies_ends_and_resumes_as_if_nothing_had_been(train, tmp_path, tmp_path_factory):
    """Nothing is learned twice, and nothing is forgotten, by the rule and by the selector.

    ``coordinator/test_selection`` has what is chosen, ``test_dataset`` the rows, ``test_estimators`` their weights.
    """
    whole = train(SELECTED, main="apportion.verl", folder=tmp_path_factory.mktemp("whole"))
    rows = [row for step in range(1, 5) for row in trained(whole.rows(step))]
    assert len({row["apportion"]["weight"] for row in rows}) > 1
    chosen = len({row["index"] for row in rows})
    assert whole.metrics[-1]["selection/never_chosen"] == pytest.approx(1 - chosen / 16)
    (tmp_path / "records" / "faults").mkdir(parents=True)
    for index in range(16):  # killed in the middle of the third step, whatever its prompts are
        (tmp_path / "records" / "faults" / f"kills_trainer_{index}@3").touch()
    killed = train((*SELECTED, *FAULTY), main="apportion.verl", folder=tmp_path, fails=True)
    assert killed.status != -9 and "ActorDiedError" in killed.output
    died = (tmp_path / "records" / "trainer_killed").stat().st_mtime
    assert (tmp_path / "output.log").stat().st_mtime - died < 20
    assert_no_process_is_left(tmp_path)

    resumed = train(SELECTED, main="apportion.verl", folder=tmp_path)
    assert [each["step"] for each in resumed.metrics] == [3, 4]
    for step, mine, other in zip((3, 4), resumed.metrics, whole.metrics[2:], strict=True):
        seen = [
            sorted((row["index"], row["responses"], row["advantages"]) for row in run.rows(step))
            for run in (resumed, whole)
        ]
        assert seen[0] == seen[1]
        for name in ("allocation/rollouts", "allocation/predicted_success", "selection/never_chosen"):
            assert mine[name] == pytest.approx(other[name])
