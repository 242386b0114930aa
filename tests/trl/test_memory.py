"""Memory is bounded as in TRL, whatever a rule plans and whatever fails.

No micro-batch has more rows than ``per_device_train_batch_size``, TRL generates no more completions at once than a
generation batch has, and the loss has no more rows than the allocator promises.
"""

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Trainer

from apportion import ALLOCATORS, AR3PO, DAPO
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.rows import loss_mask, split_micro_batch
from tests.builders import LABELLED
from tests.rules import small
from tests.soak import case
from tests.trl.tiny import TERMS, Judge, Watch, assert_gradient, direct_gradient, trained

SHAPES = {
    "one row": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "num_generations": 4},
    "three rows": {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 8, "num_generations": 6},
    "one micro-batch": {"per_device_train_batch_size": 24, "gradient_accumulation_steps": 1, "num_generations": 6},
    "two updates": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "steps_per_generation": 6,
        "num_generations": 6,
    },
}
RATES = (0.0, 0.3, 0.9, 1.0)


TURNS = [
    case(name, turn, suite=(turn + number) % 4 == 0)
    for number, name in enumerate(sorted(LABELLED))
    for turn in range(4)
]
"""In the suite every rule meets one of the four shapes; in ``make soak`` all."""


@pytest.mark.parametrize(("name", "turn"), TURNS)
def test_the_memory_bound_holds(make, name, turn):
    """Every rule meets each shape and each failure rate once."""
    number = sorted(LABELLED).index(name)
    shape, rate = list(SHAPES)[turn], RATES[(turn + number) % len(RATES)]
    settings, draws = SHAPES[shape], np.random.default_rng(turn)
    judge = Judge(none=lambda text: draws.random() < rate)
    watch = Watch(judge)
    allocator = small(name, settings["num_generations"])
    config = settings | {
        "max_steps": 2 * settings.get("steps_per_generation", 1) // settings["gradient_accumulation_steps"] or 2
    }
    built = make(AllocatedGRPOTrainer, config=config, reward_funcs=[judge], allocator=allocator, failed_rewards="drop")
    trained(watch.on(built))
    args = built.args
    bound = allocator.size(args.generation_batch_size // args.num_generations)
    assert watch.steps
    for step in watch.steps:
        assert max(len(chunk["advantages"]) for chunk in step.chunks) <= args.per_device_train_batch_size
        assert max(map(len, step.rounds)) <= args.generation_batch_size
        assert len(step.calls) <= (bound.asked or math.inf)
        assert len(step.rows) <= (bound.kept or math.inf)
        scored = [call.ids for call in step.calls if call.score is not None]
        if not allocator.needs.reused_rollouts:
            assert all(row.ids in scored for row in step.rows)


def test_the_rules_are_all_rules_with_labels():
    assert set(LABELLED) <= set(ALLOCATORS)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "bnpo", "luspo", "rloo"])
def test_a_micro_batch_in_parts_has_the_gradient_of_the_whole(make, loss):
    """One micro-batch a step, so that the gradient of bnpo is one over all tokens."""
    judge = Judge()
    watch = Watch(judge)
    config = {"max_steps": 1, "max_grad_norm": 0.0, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    config |= {"num_generations": 2} | ({} if loss == "rloo" else {"loss_type": loss})
    if loss == "luspo":
        config["importance_sampling_level"] = "sequence"
    trainer = AllocatedRLOOTrainer if loss == "rloo" else AllocatedGRPOTrainer
    allocator = AR3PO(stages=3, rollouts_per_stage=3, reuse="none")
    history = trained(watch.on(make(trainer, config=config, reward_funcs=[judge], allocator=allocator)))
    (step,), (weights, gradient) = watch.steps, watch.updates[0]
    sizes = [len(chunk["advantages"]) for chunk in step.chunks]
    assert len(sizes) > 1 and max(sizes) <= 8 < sum(sizes) == len(step.rows)
    assert_gradient(gradient, direct_gradient(weights, step.rows, TERMS["dapo" if loss == "bnpo" else loss]))
    assert len([row for row in history if "step_time" in row]) == 1


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
def test_dynamic_sampling_at_batch_size_one_trains_on_one_row_at_a_time(make, trainer, accumulated):
    """The loss that is logged is that of all parts too."""
    watches = {}
    for most in (1, 100):
        judge = Judge()
        watches[most] = Watch(judge)
        config = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": accumulated, "num_generations": 2}
        allocator = DAPO(rollouts_per_prompt=6, draw=4, max_draws=3)
        built = make(trainer, config=config | {"max_steps": 2}, reward_funcs=[judge], allocator=allocator)
        watches[most].on(built)
        split_at(built, most)
        watches[most].log = [row for row in trained(built) if "loss" in row]
    small_parts, whole = watches[1], watches[100]
    assert {len(chunk["advantages"]) for step in small_parts.steps for chunk in step.chunks} == {1}
    assert max(len(chunk["advantages"]) for step in whole.steps for chunk in step.chunks) > 4
    assert len(small_parts.updates) == len(whole.updates) == 2
    for (_, ours), (_, expected) in zip(small_parts.updates, whole.updates, strict=True):
        assert_gradient(ours, expected)
    for name in ("loss", "reward", "num_tokens"):
        assert [row[name] for row in small_parts.log] == pytest.approx([row[name] for row in whole.log], abs=1e-5)


def split_at(trainer, most):
    """Let ``trainer`` split micro-batches at ``most`` rows, after TRL has sized its generation batch."""
    training_step = trainer.training_step

    def stepped(*args, **settings):
        before, trainer.args.per_device_train_batch_size = trainer.args.per_device_train_batch_size, most
        try:
            return training_step(*args, **settings)
        finally:
            trainer.args.per_device_train_batch_size = before

    trainer.training_step = stepped


def test_the_entropy_bonus_of_parts_is_that_of_the_whole(make):
    gradients = {}
    for most in (2, 100):
        for coefficient in (0.0, 1.0):
            judge = Judge()
            watch = Watch(judge)
            config = {"max_steps": 1, "max_grad_norm": 0.0, "loss_type": "grpo", "entropy_coef": coefficient}
            allocator = AR3PO(stages=3, rollouts_per_stage=3, reuse="none")
            try:
                built = make(AllocatedGRPOTrainer, config=config, reward_funcs=[judge], allocator=allocator)
            except TypeError:
                pytest.skip("this version of TRL has no entropy bonus")
            split_at(built, most)
            trained(watch.on(built))
            gradients[most, coefficient] = watch.updates[0][1]
    in_parts, whole = (gradients[most, 1.0] - gradients[most, 0.0] for most in (2, 100))
    assert_gradient(in_parts, whole)


@pytest.mark.parametrize("divisor", ["row", "batch", "token"])
@pytest.mark.parametrize("most", [1, 3, 4, 20])
def test_parts_hold_every_row_once_and_their_shares_sum_to_one(divisor, most):
    lengths = [3, 0, 2, 1, 0, 3, 1]
    mask = torch.arange(3)[None, :] < torch.tensor(lengths)[:, None]
    chunk = {
        "completion_ids": torch.arange(21).view(7, 3),
        "completion_mask": mask.long(),
        "advantages": torch.arange(7.0),
        "num_items_in_batch": torch.tensor(30),
        "row_scale": torch.tensor(1.5),
    }
    parts = split_micro_batch(chunk, most, divisor)
    assert sorted(row for part in parts for row in part["advantages"].tolist()) == list(range(7))
    assert max(len(part["advantages"]) for part in parts) <= most
    assert all(float(part["row_scale"]) == 1.5 for part in parts)
    if most == 20:
        assert parts == [chunk]
        return
    assert sum(float(part["loss_share"]) for part in parts) == pytest.approx(1.0)
    entropy = [float(part["loss_share"] * part["entropy_share"]) for part in parts]
    tokens = [loss_mask(part).sum().item() / 10 for part in parts]
    if most > 1:  # no part is all masked
        assert entropy == pytest.approx(tokens)
    if divisor == "token":
        assert all(
            float(part["loss_share"]) == 0 or float(part["num_items_in_batch"]) == pytest.approx(30 * share)
            for part, share in zip(parts, tokens, strict=True)
        )


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
