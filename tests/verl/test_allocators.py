"""A rule of each kind in verl's own trainer: the rows in the loss are scored again, grouped, and compared."""

import pytest

from tests.verl.runs import MANAGER, groups_of, rloo, scored_again, trained

RULES = {
    "vip": "{name: vip, rollouts_per_prompt: 4, high: 12, predictor: counts}",
    "hora": "{name: hora, rollouts_per_prompt: 4, pre_rollouts: 2, high: 12}",
    "dapo": "{name: dapo, rollouts_per_prompt: 4, draw: 4, max_draws: 4}",
    "ar3po": "{name: ar3po, stages: 2, rollouts_per_stage: 2}",
    "optpo": "{name: optpo, min_samples: 4, max_samples: 8, exceedances: 2, wave: 2}, extract: last_number",
}
"""A rule of one round, of several, with fresh prompts, with rollouts of earlier steps, and with votes."""


@pytest.fixture(scope="module")
def run(train):
    """``run(name)``: rows and metrics of two steps under that rule, of one run under all of them in turn."""
    several = ", ".join(f"{{allocator: {rule}}}" for rule in RULES.values())
    done = train(
        (f"+several=[{several}]", MANAGER, "algorithm.adv_estimator=apportion_rloo"),
        main="tests.verl.cpu.several",
    )
    first = {name: 2 * i for i, name in enumerate(RULES)}
    return lambda name: [(done.rows(first[name] + step), done.metrics[first[name] + step - 1]) for step in (1, 2)]


@pytest.mark.parametrize("name", RULES)
def test_the_loss_sees_whole_groups_with_their_advantages_within_the_budget(run, name):
    for rows, metrics in run(name):
        groups = groups_of(rows)
        owner = [group for group, own in groups.items() for _ in own]
        assert len(trained(rows)) == metrics["allocation/rows"]
        assert len(rows) - len(trained(rows)) == metrics["allocation/padding"] and len(rows) % 16 == 0
        for own in groups.values():
            rewards = own[0]["apportion"]["rewards"]
            assert len({row["index"] for row in own}) == 1 or name == "dapo"
            assert all(row["apportion"]["rewards"] == rewards for row in own)
            positions = [row["apportion"]["position"] for row in own]
            assert len(set(positions)) == len(positions)
            weight = len(owner) / (len(groups) * len(own))
            for row in own:
                reward = rewards[row["apportion"]["position"]]
                assert sum(row["rm_scores"]) == pytest.approx(reward)
                expected = rloo(rewards)[row["apportion"]["position"]] * weight
                assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-5)
                if name != "optpo":
                    assert reward == scored_again(row)
        assert all(row["advantages"] == [0.0] for row in rows if row["padding"])
        assert metrics["allocation/requests"] == 1 and metrics["allocation/failed"] == 0
        if name in ("vip", "hora"):
            assert metrics["allocation/rollouts"] == 16 and metrics["allocation/padding"] == 0
        if name == "dapo":
            assert metrics["allocation/rollouts"] == 4 * metrics["allocation/prompts"]
        else:
            assert metrics["allocation/prompts"] == 4 and metrics["allocation/n_min"] >= 1


def test_a_rule_that_draws_fresh_prompts_trains_on_groups_that_differ(run):
    assert any(metrics["allocation/prompts"] > 4 for _, metrics in run("dapo"))
    for rows, _ in run("dapo"):
        groups = groups_of(rows).values()
        assert len(groups) == len({own[0]["index"] for own in groups}) == 4 and all(len(own) == 4 for own in groups)
        assert all(len({sum(row["rm_scores"]) for row in own}) == 2 for own in groups)


def test_votes_reward_what_the_reward_function_never_saw(run):
    for rows, _ in run("optpo"):
        for own in groups_of(rows).values():
            assert set(own[0]["apportion"]["rewards"]) <= {0.0, 1.0}
            assert all(row["extra_fields"]["reward_extra_info"] == {} for row in own)
    assert any(metrics["allocation/groups"] > 0 for _, metrics in run("optpo"))
