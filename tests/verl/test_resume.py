"""A killed run that resumes from verl's checkpoint equals an uninterrupted one: plans, rows and metrics."""

import pytest

from tests.verl.runs import FAULTY, SAVED, allocated, checkpointed

SAVING = ("trainer.save_freq=1", "trainer.total_training_steps=4", "trainer.resume_mode=auto", SAVED)
CASES = {
    "vip": "{name: vip, rollouts_per_prompt: 4, high: 8, predictor: counts}",
    "ar3po": "{name: ar3po, stages: 2, rollouts_per_stage: 2, reuse: recompute}",
    "dapo": "{name: dapo, rollouts_per_prompt: 4, draw: 4, max_draws: 4}",
    "pilot_commit": "{name: pilot_commit, pilots: 3, commits: 3, target: 1, draw: 2, max_rounds: 3}",
}
EPOCH = "data.train_max_samples=8"
"""Two steps an epoch, so that the later steps repeat its prompts."""


@pytest.mark.soak  # coordinator/test_resumed has every rule, test_failed_runs resumes HORA, test_selection a selection
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_equals_an_uninterrupted_one(train, tmp_path, name):
    more = (*SAVING, *((EPOCH,) if name != "dapo" else ()))
    whole = train(allocated(CASES[name], *more), folder=tmp_path / "whole")
    assert whole.status == 0, whole.output[-5000:]

    folder = tmp_path / "killed"
    (folder / "records" / "faults").mkdir(parents=True)
    for index in range(16):  # killed in the middle of the third step, whatever its prompts are
        (folder / "records" / "faults" / f"hangs_{index}@3").touch()
    assert (
        train(
            allocated(CASES[name], *more, *FAULTY), folder=folder, until=checkpointed(folder / "checkpoints", 2)
        ).status
        == -9
    )
    assert not (folder / "records" / "rows_3.jsonl").exists()

    resumed = train(allocated(CASES[name], *more), folder=folder)
    assert resumed.status == 0, resumed.output[-5000:]
    assert [each["step"] for each in resumed.metrics] == [3, 4]
    for step in (3, 4):
        seen = [
            sorted((row["index"], row["responses"], row["advantages"]) for row in run.rows(step))
            for run in (whole, resumed)
        ]
        assert seen[0] == seen[1]
    for mine, other in zip(resumed.metrics, whole.metrics[2:], strict=True):
        for measure in ("rollouts", "prompts", "reused", "predicted_success"):
            assert mine[f"allocation/{measure}"] == pytest.approx(other[f"allocation/{measure}"])
    if name == "pilot_commit":
        assert any(step["allocation/reused"] == 3 for step in resumed.metrics)


@pytest.mark.soak  # test_checkpoints has it without verl
def test_a_checkpoint_without_the_allocators_state_begins_a_new_belief_and_a_strict_run_refuses_it(train, tmp_path):
    once = ("trainer.save_freq=1", "trainer.resume_mode=auto")
    stock = ("algorithm.adv_estimator=rloo", *once, "trainer.total_training_steps=1")
    assert train(stock, folder=tmp_path).status == 0

    more = (*once, "trainer.total_training_steps=2", SAVED)
    refused = train(allocated(CASES["vip"], *more, resume="strict"), folder=tmp_path)
    assert refused.status == 1 and "a checkpoint must hold the allocator's state" in refused.output

    resumed = train(allocated(CASES["vip"], *more), folder=tmp_path)
    assert resumed.status == 0, resumed.output[-5000:]
    assert "The weights are those of global_step_1, but the allocator's state is that of a new run" in resumed.output
    assert [each["step"] for each in resumed.metrics] == [2]
    assert (tmp_path / "checkpoints" / "global_step_2" / "allocation.pt").exists()
