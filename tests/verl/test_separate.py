"""verl's trainer with rollout workers of their own, which sample while others train, and get the weights over gloo."""

import pytest

from tests.verl.cpu.assets import EASE
from tests.verl.runs import FAULTY, SAVED, allocated, checkpointed, groups_of, rloo, scored_again, trained

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
AR3PO = "{name: ar3po, stages: 2, rollouts_per_stage: 2, reuse: none}"
VIP = "{name: vip, rollouts_per_prompt: 4.5, high: 8, predictor: counts}"
SAVING = ("trainer.save_freq=1", "trainer.resume_mode=auto", SAVED)


def run_verl(train, overrides, **settings):
    done = train(overrides, **settings)
    assert done.status == 0, done.output[-5000:]
    return done


@pytest.fixture
def separate(train):
    """Return ``separate(allocator)``: some steps under that allocator."""
    return lambda allocator: run_verl(train, allocated(allocator, *SEPARATE))


def check_step(rows):
    """Check that each of a step's two updates has two whole groups, whose rewards and advantages are right."""
    assert {row["update"] for row in rows} == {0, 1}
    for update in (0, 1):
        own_rows = [row for row in rows if row["update"] == update]
        groups = groups_of(own_rows)
        assert len(groups) == 2
        total = sum(len(own) for own in groups.values())
        for own in groups.values():
            columns = own[0]["apportion"]
            assert len({row["index"] for row in own}) == 1
            assert sorted(row["apportion"]["position"] for row in own) == list(range(len(columns["rewards"])))
            for row in own:
                position = row["apportion"]["position"]
                assert columns["rewards"][position] == sum(row["rm_scores"]) == scored_again(row, EASE)
                share = columns["weight"] * total / (2 * len(own))  # 1 for each prompt, but for a selection's weights
                expected = rloo(columns["rewards"])[position] * share
                found = [a for a, mask in zip(row["advantages"], row["response_mask"], strict=True) if mask]
                assert found == pytest.approx([expected] * len(found), abs=1e-5)


@pytest.mark.parametrize(
    "allocator",
    [UNIFORM, *(pytest.param(each, marks=pytest.mark.soak) for each in (HORA, AR3PO))],
    ids=["uniform", "hora", "ar3po"],
)
def test_each_update_sees_whole_groups_and_nothing_is_lost_or_seen_twice(separate, allocator):
    done = separate(allocator)
    assert [metrics["step"] for metrics in done.metrics] == [1, 2, 3]
    keys, prompts = [], []
    for step, metrics in enumerate(done.metrics, start=1):
        rows = done.rows(step)
        check_step(rows)
        assert metrics["allocation/rows"] == len(trained(rows))
        assert metrics["actor/grad_norm"] > 0 or not any(row["advantages"][0] for row in trained(rows))
        keys += [row["key"] for row in trained(rows)]
        prompts += [own[0]["index"] for own in groups_of(rows).values()]
    assert len(keys) == len(set(keys)) and len(prompts) == len(set(prompts)) == 4 * STEPS
    logged = [metrics for metrics in done.metrics if "allocation/rollouts" in metrics]
    each = {UNIFORM: 4, HORA: 6}
    if allocator in each:
        assert all(
            metrics["allocation/rollouts"] == each[allocator] * metrics["allocation/prompts"] for metrics in logged
        )
    assert (max(metrics["allocation/n_max"] for metrics in logged) > 4) == (allocator == HORA)


def test_rollouts_are_sampled_while_others_train_with_weights_that_arrive_over_gloo(separate):
    """The first two batches are submitted before the first step, so all later ones are one step behind."""
    done = separate(UNIFORM)
    sampled = [{row["extra_fields"]["max_global_steps"] for row in trained(done.rows(step))} for step in (1, 2, 3)]
    assert sampled == [{0}, {0}, {1}]


@pytest.mark.soak  # test_selection has the same under a synchronous trainer
def test_a_selection_chooses_the_prompts_and_weighs_them(train):
    spo = "{name: spo, predictor: counts, importance_weights: true}"
    done = run_verl(train, ("allocation=uniform", f"allocation.selection={spo}", *SEPARATE), main="apportion.verl")
    weights = set()
    for step, metrics in enumerate(done.metrics, start=1):
        check_step(done.rows(step))
        assert metrics["allocation/rows"] == 16
        weights |= {row["apportion"]["weight"] for row in done.rows(step)}
    coverage = [metrics["selection/never_chosen"] for metrics in done.metrics if "selection/never_chosen" in metrics]
    assert coverage[-1] < coverage[0] < 1
    assert 1.0 in weights and len(weights) > 1  # nothing was known of the first choices


@pytest.mark.soak  # the next test has a prompt that hangs under another rule
def test_a_straggler_of_a_rule_with_a_shared_budget_holds_back_no_other_prompt(train, tmp_path):
    (tmp_path / "records" / "faults").mkdir(parents=True)
    (tmp_path / "records" / "faults" / "hangs_1").touch()
    vip = "{name: vip, rollouts_per_prompt: 4, high: 8, predictor: counts}"
    done = run_verl(train, allocated(vip, *SEPARATE, *FAULTY), folder=tmp_path)
    found = {row["index"] for step in (1, 2, 3) for row in trained(done.rows(step))}
    assert {0, 2, 3} < found and 1 not in found
    for step in (1, 2, 3):
        check_step(done.rows(step))


@pytest.mark.soak  # coordinator/test_resumed kills an asynchronous trainer, test_failed_runs resumes a run of verl
@pytest.mark.parametrize(("allocator", "each"), [(UNIFORM, 4), (HORA, 6), (VIP, 4.5)], ids=["uniform", "hora", "vip"])
def test_a_killed_run_starts_prompts_in_flight_again_and_trains_on_each_once(train, tmp_path, allocator, each):
    """Prompt 9 hangs, so that it is in flight at the checkpoint; HORA's others in its round wait for it.

    VIP gives it 5 of its round's 18 rollouts. Alone it would get 4.
    """
    more = (*SEPARATE, *SAVING, "trainer.total_training_steps=4")
    (tmp_path / "records" / "faults").mkdir(parents=True)
    hangs = tmp_path / "records" / "faults" / "hangs_9"
    hangs.touch()
    saved = checkpointed(tmp_path / "checkpoints", 2)  # our file alone is too early: verl writes its tracker after it
    killed = train(allocated(allocator, *more, *FAULTY), folder=tmp_path, until=saved)
    assert killed.status == -9, killed.output[-5000:]
    before = [row for step in (1, 2) for row in trained(killed.rows(step))]
    hangs.unlink()
    resumed = run_verl(train, allocated(allocator, *more, *FAULTY), folder=tmp_path)
    assert [metrics["step"] for metrics in resumed.metrics] == [3, 4]
    assert f"Re-issued {4 if allocator == HORA else 1} in-flight prompts" in resumed.output
    after = [row for step in (3, 4) for row in trained(resumed.rows(step))]
    for step in (3, 4):
        check_step(resumed.rows(step))
    assert {row["index"] for row in before} == set(range(8))
    assert {row["index"] for row in after} == set(range(8, 16))
    keys = [row["key"] for row in (*before, *after)]
    assert len(keys) == len(set(keys)) == 16 * each
