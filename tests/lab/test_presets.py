"""Presets hold what the papers combine."""

import pytest

from apportion import DAPO, VIP, Prompt, Rollout, Uniform
from apportion.predictors import GaussianProcess
from apportion.presets import mopps_with_refill, spo, vip_as_printed
from apportion.selection import MoPPS
from tests.builders import finished


def test_vip_as_printed_has_the_papers_process_and_formula():
    found = vip_as_printed("dr_grpo", 12)
    assert found.arguments().keys() == {"allocator", "estimator"}
    assert found.allocator == VIP(estimator="dr_grpo", rollouts_per_prompt=12, predictor=GaussianProcess())
    assert found.estimator == found.allocator.needs.estimator == "dr_grpo"
    with pytest.raises(ValueError, match="estimator must be one of rloo, dr_grpo, got 'grpo'; the paper of vip"):
        vip_as_printed("grpo")


def test_mopps_chooses_prompts_and_dapo_refills_the_batch():
    preset = mopps_with_refill()
    assert preset.arguments().keys() == {"allocator", "selection"}
    assert isinstance(preset.allocator, DAPO) and isinstance(preset.selection, MoPPS)


def test_spo_draws_prompts_by_the_baseline_that_it_subtracts():
    found, prompts = spo({"a": 0.75}, rho=0.9), [Prompt("one", id="a"), Prompt("two"), Prompt("three", rate=0.25)]
    assert found.allocator == Uniform(rollouts_per_prompt=1) and found.estimator == "spo"
    assert (found.baseline.rho, found.selection.floor) == (0.9, 0.05)
    found.selection.prepare(prompts)
    batch = finished(prompts, [[Rollout(True)], [Rollout(False)], []], asked=[1, 1, 1])
    for _ in range(3):
        assert found.selection._predict().mean.tolist() == found.baseline.predict(prompts).tolist()
        found.baseline.update(batch)
        found.selection.observe(batch)
    restored = spo({"a": 0.75}, rho=0.9).selection
    restored.prepare(prompts)
    restored.load_state_dict(found.selection.state_dict())
    assert restored._predict() == found.selection._predict()
