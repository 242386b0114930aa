"""Selection in verl's own trainer: the rows that it trains on are those that a selector chooses from their outcomes."""

import math
import shutil

import numpy as np
import pytest

from apportion import Batch, Belief, Plan, Rollout
from apportion.predictors import DiscountedCounts
from apportion.selection import SPOWeights
from apportion.verl.dataset import prompt_of
from tests.verl.cpu.assets import make_questions
from tests.verl.runs import FAULTY, allocated, checkpointed, groups_of, rloo

MAIN = "apportion.verl"
STOCK_BUFFER = ("trainer.v1.sampler.custom_sampler.path=null", "trainer.v1.sampler.custom_sampler.name=null")
SPO = "{name: spo, predictor: counts, importance_weights: true}"
SAVING = ("trainer.save_freq=1", "trainer.total_training_steps=4", "trainer.resume_mode=auto")
SELECTED = ("allocation=uniform", f"allocation.selection={SPO}", *SAVING)


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """Four steps that were not interrupted, with a checkpoint after each."""
    done = train(SELECTED, main=MAIN, folder=tmp_path_factory.mktemp("whole"))
    assert done.status == 0, done.output[-5000:]
    return done


def outcomes(groups, prompts):
    """Return the batch of the groups of a step, as an allocator leaves it."""
    owners = [prompts[own[0]["index"]] for own in groups.values()]
    rewards = [own[0]["apportion"]["rewards"] for own in groups.values()]
    started = Batch.start(owners, Belief.uniform(len(owners)))
    plan = Plan(np.array([len(each) for each in rewards]))
    return started.add(plan, [[Rollout(reward == 1.0, reward=reward) for reward in each] for each in rewards])


def test_the_trainer_gets_the_rows_that_a_selector_chooses_and_their_weights(whole):
    columns = ("data_source", "extra_info")
    prompts = [
        prompt_of({"raw_prompt": row["prompt"], **{key: row[key] for key in columns}}) for row in make_questions()
    ]
    selector = SPOWeights(predictor=DiscountedCounts(), importance_weights=True)
    selector.prepare(prompts)
    weighted = set()
    for step, metrics in enumerate(whole.metrics, start=1):
        chosen, groups = selector.choose(4), groups_of(whole.rows(step))
        assert sorted(own[0]["index"] for own in groups.values()) == sorted(chosen)
        for own in groups.values():
            (weight,) = selector.weights([prompts[own[0]["index"]]])
            rewards = own[0]["apportion"]["rewards"]
            for row in own:
                assert row["apportion"]["weight"] == pytest.approx(weight)
                expected = weight * rloo(rewards)[row["apportion"]["position"]]
                assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-5)
            weighted.add(round(float(weight), 6))
        selector.observe(outcomes(groups, prompts))
        assert metrics["allocation/rollouts"] == 16
        for name, value in selector.metrics().items():
            assert metrics[f"selection/{name}"] == pytest.approx(value)
    assert len(weighted) > 1


@pytest.mark.soak  # coordinator/test_selection has it without verl, and test_failed_runs resumes a run of verl
def test_a_resumed_run_chooses_what_the_unbroken_one_did(whole, train, tmp_path):
    (tmp_path / "records" / "faults").mkdir(parents=True)
    for index in range(16):  # killed in the middle of the third step, whatever its prompts are
        (tmp_path / "records" / "faults" / f"hangs_{index}@3").touch()
    until = checkpointed(tmp_path / "checkpoints", 2)
    assert train((*SELECTED, *FAULTY), main=MAIN, folder=tmp_path, until=until).status == -9
    resumed = train(SELECTED, main=MAIN, folder=tmp_path)
    assert resumed.status == 0, resumed.output[-5000:]
    assert [each["step"] for each in resumed.metrics] == [3, 4]
    for step in (3, 4):
        mine, other = (
            sorted((row["index"], row["responses"], row["advantages"]) for row in run.rows(step))
            for run in (resumed, whole)
        )
        assert mine == other
    for mine, other in zip(resumed.metrics, whole.metrics[2:], strict=True):
        for name in ("never_chosen", "longest_wait"):
            assert mine[f"selection/{name}"] == pytest.approx(other[f"selection/{name}"])


@pytest.mark.soak  # test_checkpoints and coordinator/test_selection have it without verl
def test_a_selection_whose_state_is_lost_continues_from_an_older_one_at_the_data_loaders_position(
    whole, train, tmp_path
):
    """verl's weights and its data loader are those of step 2, and our state is that of step 1."""
    shutil.copytree(whole.folder / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2", encoding="utf-8")
    lost = tmp_path / "checkpoints" / "global_step_2" / "allocation.pt"
    lost.write_bytes(lost.read_bytes()[:-100])
    resumed = train(SELECTED, main=MAIN, folder=tmp_path)
    assert resumed.status == 0, resumed.output[-5000:]
    assert (
        "The weights are those of global_step_2, but the allocator's state is that of global_step_1" in resumed.output
    )
    assert "The data loader asks for choice 2 of prompts, but the state of the selection is that of" in resumed.output
    assert [each["step"] for each in resumed.metrics] == [3, 4]
    assert len({row["index"] for row in resumed.rows(3)}) == 4


@pytest.mark.soak  # refills are in test_modes
def test_prompts_that_verls_filter_refills_are_chosen_too(train):
    """Its loader takes single rows. A choice is for a batch all the same."""
    filtered = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc", "data.gen_batch_size=1")
    reported = ("reward.custom_reward_function.name=compute_report", "allocation.verdict=acc")
    chosen = ("allocation=uniform", "allocation.selection=shuffled")
    done = train((*chosen, *STOCK_BUFFER, *filtered, *reported), main=MAIN)
    assert done.status == 0, done.output[-5000:]
    assert max(metrics["allocation/requests"] for metrics in done.metrics) > 1
    requested = sum(metrics["allocation/prompts"] for metrics in done.metrics)
    for step in (1, 2):
        groups = groups_of(done.rows(step))
        assert len({own[0]["index"] for own in groups.values()}) == 4
    never = done.metrics[-1]["selection/never_chosen"]
    assert never == pytest.approx(max(0, 1 - math.ceil(requested / 4) * 4 / 16))


@pytest.mark.soak  # test_separate has a selection under an asynchronous trainer
def test_an_asynchronous_trainer_is_served_while_it_asks_ahead(train):
    chosen = ("allocation=uniform", "allocation.selection={name: mixed, predictor: counts}")
    done = train((*chosen, *STOCK_BUFFER, "trainer.v1.trainer_mode=colocate_async"), main=MAIN)
    assert done.status == 0, done.output[-5000:]
    coverage = [metrics["selection/never_chosen"] for metrics in done.metrics if "selection/never_chosen" in metrics]
    assert [metrics["step"] for metrics in done.metrics] == [1, 2]
    assert coverage and coverage == sorted(coverage, reverse=True) and coverage[0] <= 0.75


def test_another_command_is_refused_because_its_loader_has_verls_sampler(train):
    done = train(allocated("{name: uniform, rollouts_per_prompt: 4}", selection="mixed"))
    assert done.status == 1
    assert "allocation.selection needs the command python -m apportion.verl" in done.output
