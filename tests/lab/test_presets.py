"""Presets hold what the papers combine, and train."""

import numpy as np
import pytest

from apportion import DAPO, VIP, Batch, Belief, Plan, Prompt, Rollout, Uniform, collect
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.predictors import GaussianProcess
from apportion.presets import mopps_with_refill, spo, vip_as_printed
from apportion.selection import ShuffledEpochs
from tests.builders import make_prompts


def test_vip_as_printed_has_the_papers_process_and_formula():
    found = vip_as_printed("dr_grpo", 12)
    assert found.arguments().keys() == {"allocator", "estimator"}
    assert found.allocator == VIP(estimator="dr_grpo", rollouts_per_prompt=12, predictor=GaussianProcess())
    assert found.estimator == found.allocator.needs.estimator == "dr_grpo"
    with pytest.raises(ValueError, match="estimator must be one of rloo, dr_grpo, got 'grpo'; the paper of vip"):
        vip_as_printed("grpo")


def one_batch(selection, allocator, prompts, sample):
    """Return a batch of 8 chosen prompts and what refills it. The selection learns from it."""
    held = [prompts[row] for row in selection.choose(8)]

    def source(count):
        more = [prompts[row] for row in selection.choose(count, {prompt.id for prompt in held})]
        held.extend(more)
        return more

    batch = collect(allocator, list(held), sample, source=source)
    selection.observe(batch)
    return batch


def groups_drawn(selection, allocator):
    """Return the groups sampled and those trained on, in 30 batches of which a third of the prompts is mixed."""
    prompts, rng = make_prompts(120), np.random.default_rng(0)
    rates = {prompt.id: (0.0, 0.5, 1.0)[q % 3] for q, prompt in enumerate(prompts)}

    def sample(asked, counts):
        pairs = zip(asked, counts, strict=True)
        return [[Rollout(bool(rng.random() < rates[prompt.id])) for _ in range(count)] for prompt, count in pairs]

    selection.prepare(prompts, 0)
    batches = [one_batch(selection, allocator, prompts, sample) for _ in range(30)]
    return sum(len(batch.prompts) for batch in batches), sum(len(allocator.groups(batch)) for batch in batches)


def test_choice_and_refill_fill_every_batch_with_few_groups_to_spare():
    preset = mopps_with_refill()
    assert preset.arguments().keys() == {"allocator", "selection"} and isinstance(preset.allocator, DAPO)
    drawn, kept = groups_drawn(preset.selection, preset.allocator.with_budget(8))
    refilled, as_many = groups_drawn(ShuffledEpochs(), DAPO().with_budget(8))
    assert kept == as_many == 240 and drawn < 0.6 * refilled


def test_spo_draws_prompts_by_the_baseline_that_it_subtracts():
    found, prompts = spo({"a": 0.75}, rho=0.9), [Prompt("one", id="a"), Prompt("two"), Prompt("three", rate=0.25)]
    assert found.allocator == Uniform(rollouts_per_prompt=1) and found.estimator == "spo"
    assert (found.baseline.rho, found.selection.floor) == (0.9, 0.05)
    found.selection.prepare(prompts)
    batch = Batch.start(prompts, Belief.uniform(3)).add(Plan([1, 1, 1]), [[Rollout(True)], [Rollout(False)], []])
    for _ in range(3):
        assert found.selection._predict().mean.tolist() == found.baseline.predict(prompts).tolist()
        found.baseline.update(batch)
        found.selection.observe(batch)
    restored = spo({"a": 0.75}, rho=0.9).selection
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
