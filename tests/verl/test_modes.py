"""Modes of verl that change rollouts, their rewards, or the number of prompts in a step."""

import math

import pytest

from tests.verl import harness
from tests.verl.cpu.assets import make_tokenizer
from tests.verl.runs import CRITIC, allocated, groups_of, trained, whole_groups

VIP = "{name: vip, rollouts_per_prompt: 4, high: 8, predictor: counts}"
HORA = ("allocation=hora", "allocation.allocator.pre_rollouts=2", "allocation.allocator.high=8")
STOCK_BUFFER = ("trainer.v1.sampler.custom_sampler.path=null", "trainer.v1.sampler.custom_sampler.name=null")


def position(row):
    return row["apportion"]["position"]


def test_a_tool_using_loop_is_allocated_like_any_other_and_a_critic_trains_on_its_rewards(train, assets):
    critic = (*CRITIC, f"critic.model.path={assets}/policy")
    tools = (*harness.TOOLS, f"data.train_files={assets}/tools.parquet")
    done = train(allocated(VIP, *critic, *tools, estimator="gae"))
    called = 0
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        assert metrics["critic/vf_loss"] > 0 and metrics["actor/grad_norm"] > 0
        rows = trained(done.rows(step))
        assert len(rows) == metrics["allocation/rollouts"] == 16
        for name, own in whole_groups(rows).items():
            assert {row["uid"] for row in own} == {name}
            assert all(row["apportion"]["tokens"][position(row)] == sum(row["response_mask"]) for row in own)
        for row in rows:
            masked = [i for i, mask in zip(row["responses"], row["response_mask"], strict=True) if not mask]
            called += row["num_turns"] == 4
            assert ("after 7 comes 8" in make_tokenizer().decode(masked)) == (row["num_turns"] == 4)
    assert called >= 4


def test_prompts_that_verls_filter_refills_are_chosen_and_get_their_own_budget(train):
    """Its loader takes single rows. A choice of the selector is for a batch all the same."""
    filtered = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc", "data.gen_batch_size=1")
    reported = ("reward.custom_reward_function.name=compute_report", "allocation.verdict=acc")
    chosen = (*HORA, "allocation.selection=shuffled")
    done = train((*chosen, *STOCK_BUFFER, *filtered, *reported), main="apportion.verl")
    assert max(metrics["allocation/requests"] for metrics in done.metrics) > 1
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        assert metrics["allocation/rollouts"] == 4 * metrics["allocation/prompts"] >= 16
        groups = groups_of(done.rows(step))
        assert len(groups) == len({own[0]["index"] for own in groups.values()}) == 4
        assert all(len({sum(row["rm_scores"]) for row in own}) == 2 for own in groups.values())
    requested = sum(metrics["allocation/prompts"] for metrics in done.metrics)
    never = done.metrics[-1]["selection/never_chosen"]
    assert never == pytest.approx(max(0, 1 - math.ceil(requested / 4) * 4 / 16))
