"""Selection in verl's own trainer: it trains on the rows that a selector chooses, also after the trainer's death."""

import numpy as np
import pytest

from apportion import Batch, Belief, Plan, Rollout
from apportion.predictors import DiscountedCounts
from apportion.selection import SPOWeights
from apportion.verl.dataset import prompt_of
from tests.verl.cpu.assets import make_questions
from tests.verl.runs import FAULTY, groups_of, rloo
from tests.verl.test_harness import assert_no_process_is_left

SELECTED = (
    "allocation=hora",
    "allocation.allocator.pre_rollouts=2",
    "allocation.allocator.high=8",
    "allocation.selection={name: spo, predictor: counts, importance_weights: true}",
    "trainer.save_freq=1",
    "trainer.total_training_steps=4",
    "trainer.resume_mode=auto",
)


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """Four steps that were not interrupted, with a checkpoint after each."""
    return train(SELECTED, main="apportion.verl", folder=tmp_path_factory.mktemp("whole"))


def outcomes(groups, prompts):
    """Return the batch of the groups of a step, as an allocator leaves it."""
    owners = [prompts[own[0]["index"]] for own in groups.values()]
    rewards = [own[0]["apportion"]["rewards"] for own in groups.values()]
    plan = Plan(np.array([len(each) for each in rewards]))
    rollouts = [[Rollout(reward == 1.0, reward=reward) for reward in each] for each in rewards]
    return Batch.start(owners, Belief.uniform(len(owners))).add(plan, rollouts)


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
            for row in own:
                columns = row["apportion"]
                assert columns["weight"] == pytest.approx(weight)
                expected = weight * rloo(columns["rewards"])[columns["position"]] * 4 / len(own)
                assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-5)
            weighted.add(round(float(weight), 6))
        selector.observe(outcomes(groups, prompts))
        assert metrics["allocation/rollouts"] == 16
        for name, value in selector.metrics().items():
            assert metrics[f"selection/{name}"] == pytest.approx(value)
    assert len(weighted) > 1


def test_a_run_whose_trainer_dies_ends_and_resumes_as_if_nothing_had_been(whole, train, tmp_path):
    """Nothing is learned twice, and nothing is forgotten, by the rule and by the selector."""
    (tmp_path / "records" / "faults").mkdir(parents=True)
    for index in range(16):  # killed in the middle of the third step, whatever its prompts are
        (tmp_path / "records" / "faults" / f"kills_trainer_{index}@3").touch()
    killed = train((*SELECTED, *FAULTY), main="apportion.verl", folder=tmp_path, fails=True)
    assert killed.status != -9 and "ActorDiedError" in killed.output
    died = (tmp_path / "records" / "trainer_killed").stat().st_mtime
    assert (tmp_path / "output.log").stat().st_mtime - died < 20
    assert_no_process_is_left(tmp_path)

    resumed = train(SELECTED, main="apportion.verl", folder=tmp_path)
    assert [each["step"] for each in resumed.metrics] == [3, 4]
    for step, mine, other in zip((3, 4), resumed.metrics, whole.metrics[2:], strict=True):
        seen = [
            sorted((row["index"], row["responses"], row["advantages"]) for row in run.rows(step))
            for run in (resumed, whole)
        ]
        assert seen[0] == seen[1]
        for name in ("allocation/rollouts", "allocation/predicted_success", "selection/never_chosen"):
            assert mine[name] == pytest.approx(other[name])
