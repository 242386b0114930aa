"""Micro-batches with more rows than ``per_device_train_batch_size`` are trained on in parts, as one.

``test_bill`` shows that memory is bounded as in TRL, whatever a rule plans.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Trainer

from apportion import AR3PO, DAPO
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.rows import split_micro_batch
from tests.trl.tiny import TERMS, Judge, Watch, assert_gradient, direct_gradient, trained

RAGGED = AR3PO(stages=3, rollouts_per_stage=3, reuse="none")
ONE = {"max_steps": 1, "max_grad_norm": 0.0}


@pytest.mark.parametrize("loss", ["grpo", "dapo", "bnpo", "luspo", "rloo"])
def test_a_micro_batch_in_parts_has_the_gradient_of_the_whole(make, loss):
    """One micro-batch a step, so that the gradient of bnpo is one over all tokens."""
    watch = Watch(Judge())
    config = ONE | {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 2}
    config |= {} if loss == "rloo" else {"loss_type": loss}
    config |= {"importance_sampling_level": "sequence"} if loss == "luspo" else {}
    trainer = AllocatedRLOOTrainer if loss == "rloo" else AllocatedGRPOTrainer
    history = trained(watch.on(make(trainer, config=config, reward_funcs=[watch.judge], allocator=RAGGED)))
    (step,), ((weights, gradient),) = watch.steps, watch.updates
    sizes = [len(chunk["advantages"]) for chunk in step.chunks]
    assert len(sizes) > 1 and max(sizes) <= 8 < sum(sizes) == len(step.rows)
    assert_gradient(gradient, direct_gradient(weights, step.rows, TERMS["dapo" if loss == "bnpo" else loss]))
    assert len([row for row in history if "step_time" in row]) == 1
    terms = TERMS["dapo" if loss == "bnpo" else loss](step.rows)
    loss = -sum(term * row.advantage * len(row.ids) for term, row in zip(terms, step.rows, strict=True))
    assert history[0]["loss"] == pytest.approx(loss, abs=1e-4)  # of all parts


def trained_in_parts(make, most, trainer=AllocatedGRPOTrainer, **given):
    """Train with micro-batches that are split at ``most`` rows, after TRL has sized its generation batch."""
    watch = Watch(Judge())
    built = watch.on(make(trainer, reward_funcs=[watch.judge], **given))
    training_step = built.training_step

    def stepped(*args, **settings):
        before, built.args.per_device_train_batch_size = built.args.per_device_train_batch_size, most
        try:
            return training_step(*args, **settings)
        finally:
            built.args.per_device_train_batch_size = before

    built.training_step = stepped
    return watch, [row for row in trained(built) if "loss" in row]


def test_the_entropy_bonus_of_parts_is_that_of_the_whole(make):
    gradients = {}
    for most in (2, 100):
        for coefficient in (0.0, 1.0):
            config = ONE | {"loss_type": "grpo", "entropy_coef": coefficient}
            try:
                watch, _ = trained_in_parts(make, most, config=config, allocator=RAGGED)
            except TypeError:
                pytest.skip("this version of TRL has no entropy bonus")
            gradients[most, coefficient] = watch.updates[0][1]
    in_parts, whole = (gradients[most, 1.0] - gradients[most, 0.0] for most in (2, 100))
    assert_gradient(in_parts, whole)


def test_the_losses_of_parts_are_added_on_the_device_of_the_model(make, monkeypatch):
    """A fake tensor stands for a loss on a GPU, which cannot be added in place to one on the CPU."""
    built, gpu = make(AllocatedGRPOTrainer, allocator=DAPO()), FakeTensorMode(allow_non_fake_inputs=True)
    built.current_gradient_accumulation_steps = 4

    def step_on_gpu(*args, **settings):
        with gpu:
            return torch.ones((), device="cuda")

    ids = torch.ones((24, 3), dtype=torch.long)
    chunk = {"completion_ids": ids, "completion_mask": ids, "num_items_in_batch": torch.tensor(72)}
    monkeypatch.setattr(Trainer, "training_step", step_on_gpu)
    monkeypatch.setattr(built, "_prepare_inputs", lambda inputs: chunk)
    assert len(split_micro_batch(chunk, built.args.per_device_train_batch_size, "row")) == 3
    assert built.training_step(built.model, []).device.type == "cuda"
