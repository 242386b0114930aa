"""Environments that raise: a failed rollout is unscored, a failed run ends, and nothing waits for ever."""

import asyncio
import json
from dataclasses import dataclass

import numpy as np
import pytest
from tinker_cookbook.rl import train
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.train import AsyncConfig

from apportion import HORA, Allocator, Plan, Uniform
from apportion.tinker import allocated
from tests.tinker.problems import Faults, questions
from tests.tinker.runs import BELOW, assert_advantages, counts, trained

ALLOCATORS = {"separable": lambda: Uniform(4), "barrier": lambda: HORA(pre_rollouts=2, rollouts_per_prompt=4)}


def gone(question, number):
    return OSError(f"the sandbox of {question} is gone")


def second(question, number):
    return gone(question, number) if number == 2 else None


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_failures_at_once_end_the_run_and_do_not_wait_for_an_environment_that_hangs(configured, run, allocator):
    hangs = questions(4)[1]
    faults = Faults(
        lambda question, number: gone(question, number) if question != hangs else None, lambda own: own == hangs
    )
    with pytest.raises(OSError, match="the sandbox of 0 a") as error:
        run(allocated(configured({"faults": faults}), ALLOCATORS[allocator]()))
    assert any("2 more failed in the same round of the batch" in note for note in error.value.__notes__)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_cancelled_run_leaves_no_task(configured, service, allocator):
    """As by Ctrl-C, or by a time limit of the user's own."""
    config = allocated(configured({"faults": Faults(hanging=lambda question: True)}), ALLOCATORS[allocator]())

    async def cancelled():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(train.main(config), 2)
        return [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]

    assert asyncio.run(cancelled()) == []


def test_a_failed_rollout_is_tried_again_by_the_users_strategy(configured, run, service):
    config = configured({"faults": Faults(second)}, max_steps=1, rollout_error_tolerance=RetryOnFailure(max_retries=1))
    log = run(allocated(config, Uniform(4)))
    assert counts(trained(service, 0)) == dict.fromkeys(trained(service, 0), 4)
    assert log[0]["env/all/allocation/failed"] == 0 and log[0]["rollout_errors/OSError"] == 4


@pytest.mark.parametrize(
    "ahead", [None, AsyncConfig(max_steps_off_policy=0, groups_per_batch=4, loss_fn="importance_sampling")]
)
def test_the_siblings_of_a_failed_rollout_are_trained_on_with_the_advantages_of_the_siblings(
    configured, run, service, ahead
):
    strategy = MinViableGroup(min_successful=1, max_retries=0)
    settings = {"rollout_error_tolerance": strategy, "async_config": ahead, "max_steps": 1}
    log = run(allocated(configured({"faults": Faults(second)}, **settings), Uniform(4)))
    assert log[0]["env/all/allocation/failed"] == log[0]["rollout_errors/OSError"] == 4
    assert log[0]["env/all/allocation/rollouts"] == 16
    groups, weight = trained(service, 0), 1.0 if ahead is None else 4 / 3
    for question, group in groups.items():
        rewards = np.array([float(row.ids[0] < BELOW[question]) for row in group])
        expected = weight * (rewards - rewards.mean())
        np.testing.assert_allclose([row.advantage for row in group], expected, rtol=1e-5, atol=1e-6)
    assert [len(group) for group in groups.values()] == [3] * 4


@pytest.mark.parametrize(
    ("allocator", "bad"),
    [("separable", float("nan")), ("separable", 1e39), ("barrier", -float("inf")), ("barrier", float("inf"))],
)
def test_a_reward_that_is_no_finite_number_is_a_failed_rollout(configured, run, service, allocator, bad):
    wrong = questions(4)[2]
    faults = Faults(reward=lambda question, number, reward: bad if question == wrong and number <= 4 else reward)
    log = run(allocated(configured({"faults": faults}, max_steps=1), ALLOCATORS[allocator]()))
    failed = log[0]["env/all/allocation/failed"]
    assert 1 <= failed <= 4 and len(service.trained[0]) == 16 - failed
    assert_advantages(service, 0)


def test_a_batch_in_which_all_fail_is_skipped(configured, run, service):
    faults = Faults(lambda question, number: gone(question, number) if question in questions(4) else None)
    log = run(allocated(configured({"faults": faults}, rollout_error_tolerance=True), Uniform(4)))
    assert [row["step"] for row in log[:3]] == [0, 1, 2] and "env/all/reward/total" not in log[0]
    assert len(service.trained) == 2 and all(len(datums) == 16 for datums in service.trained)


def test_an_error_of_the_allocation_ends_a_tolerant_run(configured, run):
    """A tolerant strategy skips groups with errors. It must not skip a wrong configuration for a whole run."""
    config = configured({"graded": True}, rollout_error_tolerance=True)
    with pytest.raises(ValueError, match=r"rewards must be 0 or 1 .* without a verdict; .* as verdict, now 'solved'"):
        run(allocated(config, HORA(pre_rollouts=2, rollouts_per_prompt=4), verdict="solved"))


@dataclass(frozen=True)
class Greedy(Allocator):
    """Draws two prompts beside those of the batch, trains on all, and says no number of them."""

    name = "greedy"

    def plan(self, batch):
        if len(batch.prompts) == 4:
            return Plan(np.zeros(4, int), fresh=2)
        return Plan(np.maximum(4 - batch.asked, 0))


def test_more_groups_than_the_batch_has_places_for_are_refused(configured, run):
    with pytest.raises(ValueError, match=r"greedy must train on at most 4 prompts, .* got 6; keep fewer"):
        run(allocated(configured(), Greedy()))


def test_a_builder_of_another_size_is_refused(configured, run):
    with pytest.raises(ValueError, match="resized to 3 must make 3 environments, got 4 rollouts"):
        run(allocated(configured(), Uniform(3), resize=lambda builder, count: builder))
    with pytest.raises(ValueError, match="resized to 6 must make 6 environments, got 4 rollouts"):
        run(allocated(configured(), Uniform(6), resize=lambda builder, count: builder))


def test_the_configuration_is_logged(configured, run, tmp_path):
    run(allocated(configured(max_steps=1), HORA(pre_rollouts=2, rollouts_per_prompt=4)))
    logged = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "HORA(" in logged["dataset_builder"]["allocation"]["allocator"]
    assert logged["rollout_error_tolerance"] == {"inner": "FailFast()"}


def test_each_group_logs_its_own_rollouts(configured, run, tmp_path):
    """The cookbook's HTML log has a section for each of the first groups. Later rounds belong to the same section."""
    config = configured(max_steps=1, num_groups_to_log=2)
    run(allocated(config, HORA(pre_rollouts=2, rollouts_per_prompt=4)))
    (path,) = (tmp_path / "run").rglob("train*.html")
    html = path.read_text()
    assert "about 0 a" in html and "about 1 a" in html
    assert "about 2 a" not in html and "about 3 a" not in html
