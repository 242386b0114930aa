"""Presets hold what the papers combine, and train."""

import pytest

from apportion import VIP, Batch, Belief, Plan, Prompt, Rollout, Uniform
from apportion.baselines import SPO
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.predictors import GaussianProcess
from apportion.presets import spo, vip_as_printed


def test_vip_as_printed_has_the_papers_process_and_formula():
    found = vip_as_printed("dr_grpo", 12)
    assert found.arguments().keys() == {"allocator", "estimator"}
    assert found.allocator == VIP(estimator="dr_grpo", rollouts_per_prompt=12, predictor=GaussianProcess())
    assert found.estimator == found.allocator.needs.estimator == "dr_grpo"
    with pytest.raises(ValueError, match="estimator must be rloo or dr_grpo for vip, got 'grpo'; "):
        vip_as_printed("grpo")


def test_spo_has_one_rollout_its_tracker_its_estimator_and_its_weights():
    found = spo({"a": 0.75}, rho=0.9)
    assert found.allocator == Uniform(rollouts_per_prompt=1) and found.estimator == "spo"
    assert isinstance(found.baseline, SPO) and (found.baseline.rho, found.baseline.rates) == (0.9, {"a": 0.75})
    assert found.selection.floor == 0.05


def test_spo_draws_prompts_by_the_baseline_that_it_subtracts():
    found, prompts = spo({"a": 0.75}), [Prompt("one", id="a"), Prompt("two"), Prompt("three", rate=0.25)]
    found.selection.prepare(prompts)
    batch = Batch.start(prompts, Belief.uniform(3)).add(Plan([1, 1, 1]), [[Rollout(True)], [Rollout(False)], []])
    for _ in range(3):
        assert found.selection._predict().mean.tolist() == found.baseline.predict(prompts).tolist()
        found.baseline.update(batch)
        found.selection.observe(batch)
    restored = spo({"a": 0.75}).selection
    restored.prepare(prompts)
    restored.load_state_dict(found.selection.state_dict())
    assert restored._predict() == found.selection._predict()


def test_spo_trains(tmp_path, small_base_folder):
    decisions = spo().arguments()
    allocator = decisions.pop("allocator")
    settings = Training(
        base=small_base_folder, problems=32, prompts_per_step=16, rollouts=160, held_out=20, **decisions
    )
    trainer = Trainer(settings, allocator, 0, tmp_path)
    before = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
    assert trainer.run()
    assert any((before[name] != value).any() for name, value in trainer.policy.state_dict().items())
    assert trainer.selector.metrics()["never_chosen"] < 0.5
