"""Modes of verl that change rollouts, their rewards, or the number of prompts in a step."""

import numpy as np
import pytest

from tests.verl import harness
from tests.verl.cpu.assets import EASE, make_tokenizer, passages
from tests.verl.runs import CRITIC, HORA, allocated, groups_of, rloo, scored_again, trained

VIP = "{name: vip, rollouts_per_prompt: 4, high: 8, predictor: counts}"
STOCK_BUFFER = ("trainer.v1.sampler.custom_sampler.path=null", "trainer.v1.sampler.custom_sampler.name=null")


def run_verl(train, overrides, **settings):
    done = train(overrides, **settings)
    assert done.status == 0, done.output[-5000:]
    return done


def test_a_tool_using_loop_is_allocated_like_any_other(train, assets):
    done = run_verl(train, allocated(VIP, *harness.TOOLS, f"data.train_files={assets}/tools.parquet"))
    called = 0
    for step in (1, 2):
        rows = trained(done.rows(step))
        assert len(rows) == done.metrics[step - 1]["allocation/rollouts"] == 16
        for own in groups_of(rows).values():
            assert own[0]["apportion"]["tokens"] == [sum(row["response_mask"]) for row in sorted(own, key=position)]
            assert [sum(row["rm_scores"]) for row in sorted(own, key=position)] == own[0]["apportion"]["rewards"]
        for row in rows:
            masked = [i for i, mask in zip(row["responses"], row["response_mask"], strict=True) if not mask]
            called += row["num_turns"] == 4
            assert ("after 7 comes 8" in make_tokenizer().decode(masked)) == (row["num_turns"] == 4)
            assert all(
                advantage == 0
                for advantage, mask in zip(row["advantages"], row["response_mask"], strict=True)
                if not mask
            )
    assert called >= 4


DAPO = "{name: dapo, rollouts_per_prompt: 4}"


@pytest.mark.soak  # tools that are released, and later waves with them, are here alone
@pytest.mark.parametrize("allocator", [HORA, DAPO])
def test_a_search_tool_gets_the_passages_of_its_own_question(train, assets, allocator):
    """Also in later waves, and for extra prompts that the allocator draws. Every instance of the tool is released."""
    done = run_verl(train, allocated(allocator, *harness.SEARCHES, f"data.train_files={assets}/search.parquet"))
    searches, drawn = 0, 0
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        drawn += metrics["allocation/prompts"] - 4
        groups = groups_of(done.rows(step))
        assert len(groups) == 4
        for own in groups.values():
            found = own[0]["apportion"]
            assert len(own) == len(found["tokens"]) and sorted(map(position, own)) == list(range(len(own)))
            for row in own:
                text = make_tokenizer().decode(row["responses"])
                reply = f"<|im_start|>tool\nq: {' '.join(passages(row['index']))}<|im_end|>"
                assert row["num_turns"] in (2, 6) and text.count(reply) == text.count("<|im_start|>tool") == (
                    2 if row["num_turns"] == 6 else 0
                )
                assert sum(row["response_mask"]) == found["tokens"][position(row)]
                searches += text.count(reply)
    released = (done.folder / "records" / "searches").read_text(encoding="utf-8").splitlines()
    assert 16 <= searches <= len(released) and set(released) <= {" ".join(passages(i)) for i in range(16)}
    if allocator == DAPO:
        assert drawn > 0
    else:
        assert searches == len(released) and all(metrics["allocation/rounds"] == 2 for metrics in done.metrics)


@pytest.mark.soak  # test_settings has the norms of made-up outputs, test_estimators the advantages
def test_a_baseline_from_history_is_subtracted_and_learns_from_the_policy_s_own_tokens(train, assets):
    tools = (*harness.TOOLS, f"data.train_files={assets}/tools.parquet")
    uniform, settings = "{name: uniform, rollouts_per_prompt: 4}", {"baseline": "{name: optimal, scope: constant}"}
    done = run_verl(train, allocated(uniform, *tools, estimator="apportion_reinforce", **settings))
    first, second = (trained(done.rows(step)) for step in (1, 2))
    norms = [row["apportion"]["score_norms"][position(row)] for row in first]
    for row, norm in zip(first, norms, strict=True):
        own = np.array(row["response_mask"], bool)
        assert norm == pytest.approx(((1 - np.exp(np.array(row["rollout_log_probs"])[own])) ** 2).sum(), rel=1e-4)
    rewards = [sum(row["rm_scores"]) for row in first]
    expected = np.average(rewards, weights=norms)
    assert 0 < expected < 1 and any(len(row["response_mask"]) > sum(row["response_mask"]) for row in first)
    for rows, baseline in ((first, 0.0), (second, expected)):
        for row in rows:
            assert row["apportion"]["baseline"] == pytest.approx([baseline] * 4)
            own = [advantage for advantage, mask in zip(row["advantages"], row["response_mask"], strict=True) if mask]
            assert own == pytest.approx([sum(row["rm_scores"]) - baseline] * len(own), abs=1e-5)


def test_spo_trains_on_one_rollout_a_prompt_against_what_it_tracked_before(train):
    """Advantages are normalised over the batch. Counts of .5 and .5 are multiplied by 7/8 before each rollout."""
    single, eight = "{name: uniform, rollouts_per_prompt: 1}", ("data.train_batch_size=8", "data.train_max_samples=8")
    batch = (*eight, "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=1")
    done = run_verl(train, allocated(single, *batch, estimator="apportion_spo", baseline="spo"))
    tracked = dict.fromkeys(range(8), np.array([0.5, 0.5]))
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        rows = done.rows(step)
        assert len(rows) == metrics["allocation/rollouts"] == 8 and metrics["allocation/padding"] == 0
        rewards = np.array([sum(row["rm_scores"]) for row in rows])
        assert rewards.tolist() == [scored_again(row, EASE) for row in rows]
        before = np.array([tracked[row["index"]][0] / tracked[row["index"]].sum() for row in rows])
        assert [row["apportion"]["baseline"][0] for row in rows] == pytest.approx(before)
        centred = rewards - before - (rewards - before).mean()
        for row, expected in zip(rows, centred / np.sqrt((centred**2).sum() / 7 + 1e-8), strict=True):
            own = [advantage for advantage, mask in zip(row["advantages"], row["response_mask"], strict=True) if mask]
            assert own == pytest.approx([expected] * len(own), abs=1e-5)
        for row, reward in zip(rows, rewards, strict=True):
            tracked[row["index"]] = tracked[row["index"]] * 7 / 8 + np.array([reward, 1 - reward])
    assert len(set(before)) == 2 and centred.std() > 0.1


def position(row):
    return row["apportion"]["position"]


@pytest.mark.parametrize(
    ("allocator", "settings"),
    [
        (VIP, {}),
        pytest.param(
            "{name: optpo, min_samples: 4, max_samples: 8, exceedances: 2, wave: 2}",
            {"extract": "last_number"},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_critic_trains_on_what_the_allocator_rewards(train, assets, allocator, settings):
    critic = (*CRITIC, f"critic.model.path={assets}/policy")
    done = run_verl(train, allocated(allocator, *critic, estimator="gae", **settings))
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        assert metrics["critic/vf_loss"] > 0 and metrics["actor/grad_norm"] > 0
        for name, own in groups_of(done.rows(step)).items():
            assert {row["uid"] for row in own} == {name}
            for row in own:
                assert sum(row["rm_scores"]) == pytest.approx(row["apportion"]["rewards"][position(row)])
    if not settings:
        assert all(sum(row["rm_scores"]) == scored_again(row, EASE) for row in trained(done.rows(1)))


@pytest.mark.parametrize(
    "allocator",
    [HORA, pytest.param("{name: ar3po, stages: 2, rollouts_per_stage: 2, reuse: none}", marks=pytest.mark.soak)],
)
def test_prompts_that_verls_filter_refills_get_their_own_budget(train, allocator):
    filtered = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc", "data.gen_batch_size=1")
    reward = "reward.custom_reward_function.name=compute_report"
    done = run_verl(train, allocated(allocator, *STOCK_BUFFER, *filtered, reward, verdict="acc"))
    assert max(metrics["allocation/requests"] for metrics in done.metrics) > 1
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        assert metrics["allocation/prompts"] >= 4
        if allocator == HORA:
            assert metrics["allocation/rollouts"] == 4 * metrics["allocation/prompts"]
        groups = groups_of(done.rows(step))
        assert len(groups) == 4
        assert all(len({sum(row["rm_scores"]) for row in own}) == 2 for own in groups.values())


@pytest.mark.soak
def test_a_penalty_in_the_reward_counts_in_the_group(train):
    """verl subtracts the divergence from the reference from the rewards before it computes advantages."""
    penalty = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.5")
    done = run_verl(train, allocated(VIP, *penalty, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"))
    later = done.rows(2)  # in the first step policy and reference are one
    plain = [rloo(own[0]["apportion"]["rewards"])[position(row)] for own in groups_of(later).values() for row in own]
    found = [row["advantages"][0] for own in groups_of(later).values() for row in own]
    assert done.metrics[1]["actor/reward_kl_penalty"] != 0
    assert np.abs(np.array(plain) - np.array(found)).max() > 1e-4
    for own in groups_of(later).values():
        assert sum(row["advantages"][0] for row in own) == pytest.approx(0, abs=1e-5)


@pytest.mark.soak  # test_separate has an asynchronous trainer
def test_refills_of_an_asynchronous_trainer_are_their_own_rounds(train):
    done = run_verl(train, allocated(HORA, *STOCK_BUFFER, "trainer.v1.trainer_mode=colocate_async"))
    assert [metrics["step"] for metrics in done.metrics] == [1, 2]
    assert all(
        metrics["allocation/rollouts"] == 4 * metrics["allocation/prompts"]
        for metrics in done.metrics
        if "allocation/rollouts" in metrics
    )
    assert any("allocation/rollouts" in metrics for metrics in done.metrics)
