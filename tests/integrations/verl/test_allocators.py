"""Every allocator through verl's own trainer: what the loss sees is scored again, grouped, and compared."""

from dataclasses import dataclass

import numpy as np
import pytest

from apportion.allocators import ALLOCATORS
from apportion.consensus import LABEL_FREE
from tests.integrations.verl.cpu.assets import EASE
from tests.integrations.verl.runs import MANAGER, allocated, groups_of, rloo, scored_again, trained

SETTINGS = {
    "uniform": "{name: uniform, rollouts_per_prompt: 4}",
    "even": "{name: even, rollouts_per_prompt: 4, high: 8}",
    "vip": "{name: vip, rollouts_per_prompt: 4, high: 8, predictor: counts}",
    "hora": "{name: hora, rollouts_per_prompt: 4, pre_rollouts: 2, high: 8}",
    "ar3po": "{name: ar3po, stages: 2, rollouts_per_stage: 2}",
    "dapo": "{name: dapo, rollouts_per_prompt: 4, draw: 4, max_draws: 4}",
    "reinforce_ada": "{name: reinforce_ada, rollouts_per_round: 2, rounds: 3}",
    "inverse_accuracy": "{name: inverse_accuracy, rollouts_per_prompt: 4, high: 8}",
    "inverse_variance": "{name: inverse_variance, rollouts_per_prompt: 4, high: 8}",
    "select": "{name: select, allocator: {name: uniform, rollouts_per_prompt: 8}, prompts: 2}",
    "voting": "{name: voting, max_samples: 8, wave: 4}",
    "ttrl": "{name: ttrl, max_samples: 6, min_samples: 4}",
    "optpo": "{name: optpo, min_samples: 4, max_samples: 8, exceedances: 2, wave: 2}",
    "shared_votes": "{name: shared_votes, samples_per_prompt: 4, min_samples: 2, max_samples: 8, rounds: 2}",
}
REFUSED = {"neyman": "score norms"}
TOTAL = {"uniform", "even", "vip", "hora", "inverse_accuracy", "inverse_variance", "select"}
"""Those that spend 16 rollouts on 4 prompts, whatever comes out."""


@dataclass(frozen=True)
class Part:
    """The two steps of a run under one of several allocators."""

    metrics: list
    steps: list

    def rows(self, step):
        return self.steps[step - 1]


@pytest.fixture(scope="module")
def run(train):
    """``run(name)``: two steps under that allocator, of one run under all of them in turn."""
    several = ", ".join(
        f"{{allocator: {SETTINGS[name]}{', extract: last_number' if name in LABEL_FREE else ''}}}" for name in SETTINGS
    )
    done = train(
        (f"+several=[{several}]", MANAGER, "algorithm.adv_estimator=apportion_rloo"),
        main="tests.integrations.verl.cpu.several",
    )
    assert done.status == 0, done.output[-5000:]
    first = {name: 2 * place for place, name in enumerate(SETTINGS)}
    return lambda name: Part(
        done.metrics[first[name] : first[name] + 2], [done.rows(first[name] + step) for step in (1, 2)]
    )


def test_every_allocator_is_run_or_refused():
    assert set(ALLOCATORS | LABEL_FREE) == set(SETTINGS) | set(REFUSED)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_loss_sees_whole_groups_with_their_advantages(run, name):
    done = run(name)
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        rows = done.rows(step)
        groups = groups_of(rows)
        owner = [group for group, own in groups.items() for _ in own]
        assert len(trained(rows)) == metrics["allocation/rows"]
        assert len(rows) - len(trained(rows)) == metrics["allocation/padding"] and len(rows) % 16 == 0
        for own in groups.values():
            rewards = own[0]["apportion"]["rewards"]
            assert len({row["index"] for row in own}) == 1 or name == "dapo"
            assert all(row["apportion"]["rewards"] == rewards for row in own)
            places = [row["apportion"]["place"] for row in own]
            assert len(set(places)) == len(places)
            weight = len(owner) / (len(groups) * len(own))
            for row in own:
                reward = rewards[row["apportion"]["place"]]
                assert sum(row["rm_scores"]) == pytest.approx(reward)
                expected = rloo(rewards)[row["apportion"]["place"]] * weight
                assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-5)
                if name not in LABEL_FREE:
                    assert reward == scored_again(row, EASE)
        assert all(row["advantages"] == [0.0] for row in rows if row["padding"])


@pytest.mark.parametrize("name", SETTINGS)
def test_the_budget_is_kept_and_logged(run, name):
    for metrics in run(name).metrics:
        assert metrics["allocation/dispatches"] == 1 and metrics["allocation/failed"] == 0
        if name in TOTAL:
            assert metrics["allocation/rollouts"] == 16
            assert metrics["allocation/padding"] == 0
        if name not in ("dapo", "select"):
            assert metrics["allocation/prompts"] == 4 and metrics["allocation/n_min"] >= 1
        if name == "dapo":
            assert metrics["allocation/rollouts"] == 4 * metrics["allocation/prompts"]


def test_a_rule_that_draws_fresh_prompts_trains_on_groups_that_differ(run):
    done = run("dapo")
    assert any(metrics["allocation/prompts"] > 4 for metrics in done.metrics)
    for step in (1, 2):
        groups = groups_of(done.rows(step))
        assert len(groups) == 4 and all(len(own) == 4 for own in groups.values())
        assert all(len({sum(row["rm_scores"]) for row in own}) == 2 for own in groups.values())
        assert len({own[0]["index"] for own in groups.values()}) == 4


def test_votes_reward_what_the_reward_function_never_saw(run):
    done = run("ttrl")
    for step in (1, 2):
        for own in groups_of(done.rows(step)).values():
            assert set(own[0]["apportion"]["rewards"]) <= {0.0, 1.0}
            assert all(row["extra_fields"]["reward_extra_info"] == {} for row in own)
    assert any(metrics["allocation/groups"] > 0 for metrics in done.metrics)


def test_two_ranks_train_on_what_one_does(train):
    one, two = (train(allocated(SETTINGS["hora"]), ranks=ranks) for ranks in (1, 2))
    assert two.status == 0, two.output[-5000:]
    for step in (1, 2):
        content = [
            sorted((row["index"], row["responses"], np.round(row["advantages"], 6).tolist()) for row in done.rows(step))
            for done in (one, two)
        ]
        assert content[0] == content[1]
