"""verl's trainer with rollout workers of their own, which sample while others train, and get the weights over gloo."""

import pytest

from tests.verl.runs import FAULTY, SAVED, allocated, checkpointed, groups_of, rloo, trained, whole_groups

STEPS = 3
SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=gloo",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=tests.verl.cpu.transfer",
    "trainer.v1.sampler.custom_sampler.name=QuickReplayBufferAsync",
    f"trainer.total_training_steps={STEPS}",
)
"""Two updates of two prompts in each step, then new weights for the rollout workers."""
HORA = "{name: hora, rollouts_per_prompt: 6, pre_rollouts: 2, high: 12}"
UNIFORM = "{name: uniform, rollouts_per_prompt: 4}"
VIP = "{name: vip, rollouts_per_prompt: 4.5, high: 8, predictor: counts}"
SAVING = ("trainer.save_freq=1", "trainer.resume_mode=auto", SAVED)


def check_step(rows):
    """Check that each of a step's two updates has two whole groups, whose rewards and advantages are right."""
    assert {row["update"] for row in rows} == {0, 1}
    for update in (0, 1):
        own_rows = [row for row in rows if row["update"] == update]
        groups = whole_groups(own_rows)
        assert len(groups) == 2
        total = sum(len(own) for own in groups.values())
        for own in groups.values():
            columns = own[0]["apportion"]
            share = columns["weight"] * total / (2 * len(own))  # 1 for each prompt, but for a selection's weights
            for row in own:
                expected = rloo(columns["rewards"])[row["apportion"]["position"]] * share
                found = [a for a, mask in zip(row["advantages"], row["response_mask"], strict=True) if mask]
                assert found == pytest.approx([expected] * len(found), abs=1e-5)


@pytest.mark.soak  # test_streamed has the same trainer, coordinator/ has concurrent rounds
@pytest.mark.parametrize(("allocator", "each"), [(UNIFORM, 4), (HORA, 6)], ids=["uniform", "hora"])
def test_each_update_sees_whole_groups_and_nothing_is_lost_or_seen_twice(train, allocator, each):
    done = train(allocated(allocator, *SEPARATE))
    assert [metrics["step"] for metrics in done.metrics] == [1, 2, 3]
    keys, prompts = [], []
    for step, metrics in enumerate(done.metrics, start=1):
        rows = done.rows(step)
        check_step(rows)
        assert metrics["allocation/rows"] == len(trained(rows))
        assert metrics["allocation/rollouts"] == each * metrics["allocation/prompts"]
        # two batches are submitted before the first step, so all later ones are one step behind
        assert {row["extra_fields"]["max_global_steps"] for row in trained(rows)} == {max(0, step - 2)}
        keys += [row["key"] for row in trained(rows)]
        prompts += [own[0]["index"] for own in groups_of(rows).values()]
    assert len(keys) == len(set(keys)) and len(prompts) == len(set(prompts)) == 4 * STEPS


@pytest.mark.soak  # coordinator/test_resumed kills an asynchronous trainer, test_streamed resumes a run of verl
def test_a_killed_run_starts_prompts_in_flight_again_and_trains_on_each_once(train, tmp_path):
    """Prompt 9 hangs, so that it is in flight at the checkpoint. VIP gives it 5 of its round's 18 rollouts.

    Alone it would get 4.
    """
    overrides = allocated(VIP, *SEPARATE, *SAVING, "trainer.total_training_steps=4", *FAULTY)
    hangs = tmp_path / "records" / "faults" / "hangs_9"
    hangs.parent.mkdir(parents=True)
    hangs.touch()
    saved = checkpointed(tmp_path / "checkpoints", 2)  # our file alone is too early: verl writes its tracker after it
    killed = train(overrides, folder=tmp_path, until=saved)
    before = [row for step in (1, 2) for row in trained(killed.rows(step))]
    hangs.unlink()
    resumed = train(overrides, folder=tmp_path)
    assert [metrics["step"] for metrics in resumed.metrics] == [3, 4]
    assert "Re-issued 1 in-flight prompts" in resumed.output
    after = [row for step in (3, 4) for row in trained(resumed.rows(step))]
    for step in (3, 4):
        check_step(resumed.rows(step))
    assert {row["index"] for row in before} == set(range(8)) and {row["index"] for row in after} == set(range(8, 16))
    keys = [row["key"] for row in (*before, *after)]
    assert len(keys) == len(set(keys)) == 16 * 4.5
