"""verl's asynchronous trainers under a stream: whole groups once, each prompt alone, none too old, after a kill too."""

from collections import Counter

from apportion.verl.streaming import BUFFER
from tests.verl.harness import assert_no_process_is_left
from tests.verl.runs import FAULTY, SAVED, allocated, checkpointed, rloo, trained, whole_groups

STREAM = (
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=gloo",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=tests.verl.cpu.transfer",
    *(f"trainer.v1.sampler.custom_sampler.{name}={value}" for name, value in BUFFER.items()),
    "trainer.v1.sampler.max_off_policy_threshold=2",
    "trainer.total_training_steps=4",
)
"""Two updates of two prompts in each step, then new weights for the rollout workers. No group is older than one step.

``test_fault_table`` and ``coordinator`` have asynchronous trainers without a stream.
"""
EACH = 2
VIP = "{name: vip, rollouts_per_prompt: 4.5, high: 8, predictor: counts}"
SAVING = ("trainer.save_freq=1", "trainer.resume_mode=auto", SAVED)


def check_rows(run, steps):
    """Check the rows of ``steps``: whole groups with their own rewards, and no weights older than the bound."""
    groups = []
    for step in steps:
        rows = trained(run.rows(step))
        assert {row["update"] for row in rows} == {0, 1}
        for update in (0, 1):
            own = whole_groups([row for row in rows if row["update"] == update])
            assert len(own) >= EACH
            for row in (row for group in own.values() for row in group):
                columns = row["apportion"]
                assert row["extra_fields"]["min_global_steps"] >= step - 2
                assert bool(row["advantages"][0]) == bool(rloo(columns["rewards"])[columns["position"]])
            groups += own.values()
    return groups


def test_a_streamed_run_that_is_killed_trains_on_each_prompt_once(train, tmp_path):
    """Prompt 9 hangs, so that it is in flight at the checkpoint. No other prompt of its step waits for it."""
    overrides = allocated(VIP, *STREAM, *SAVING, *FAULTY, stream=True, slots=12)
    hangs = tmp_path / "records" / "faults" / "hangs_9"
    hangs.parent.mkdir(parents=True)
    hangs.touch()
    killed = train(overrides, folder=tmp_path, until=checkpointed(tmp_path / "checkpoints", 2))
    assert_no_process_is_left(tmp_path)
    before = check_rows(killed, (1, 2))
    hangs.unlink()
    resumed = train(overrides, folder=tmp_path)
    logged = [metrics for metrics in resumed.metrics if "allocation/stream_oldest" in metrics]
    assert [metrics["step"] for metrics in logged][-2:] == [3, 4]
    assert all(metrics["allocation/stream_oldest"] <= 3 for metrics in logged)
    groups = [*before, *check_rows(resumed, (3, 4))]
    keys = [row["key"] for group in groups for row in group]
    assert len(keys) == len(set(keys)) and len({key.split("_")[0] for key in keys}) == len(groups)
    indices = Counter(group[0]["index"] for group in groups)
    assert set(range(10)) <= set(indices)
    assert max(indices.values()) <= 2  # the second time in the next epoch, which the trainer has begun to bring
    assert len({len(group) for group in groups}) > 1
    # weights arrive over gloo while others are sampled
    assert {0, 1} < {row["extra_fields"]["max_global_steps"] for group in groups for row in group}
    for step, metrics in zip((3, 4), logged[-2:], strict=True):
        assert metrics["allocation/rollouts"] == metrics["allocation/rows"] == len(trained(resumed.rows(step)))
