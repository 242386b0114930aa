"""The swap works with defaults: every allocator without arguments, beside TRL's default settings.

It trains a step, or is refused before anything is generated, with the remedy.
"""

import pytest
from transformers import PrinterCallback
from trl import GRPOConfig, RLOOConfig

from apportion import DAPO, HORA, VIP, Uniform
from apportion.allocators import ALLOCATORS
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.tiny import LENGTH, Judge, make_questions, make_tokenizer

TRAINERS = {"grpo": (AllocatedGRPOTrainer, GRPOConfig), "rloo": (AllocatedRLOOTrainer, RLOOConfig)}
LOW = (
    r"num_generations must suit {name}, which takes its budget from it, got 2 \(rollouts_per_prompt must be between 3 "
    r"and 64, got 2; .*\); raise num_generations, or give the allocator other settings"
)
REFUSED = {
    **{("rloo", name): LOW.format(name=name) for name in ("vip", "neyman", "inverse_accuracy", "inverse_variance")},
    ("grpo", "ttrl"): "ttrl must train on no more than TRL's batches hold, 8 rollouts of 1 prompts, got 32; have it "
    "keep 8 per prompt on average, or raise num_generations",
    ("rloo", "ttrl"): "ttrl must train on no more than TRL's batches hold, 8 rollouts of 4 prompts, got 128; have it "
    "keep 2 per prompt on average, or raise num_generations",
}
"""By trainer and rule: TRL's default of RLOO is 2 generations, too few for a rule with a minimum of 3."""


def built(kind, policy, folder, **given):
    """Return a trainer with TRL's default numbers of generations, batch sizes and beta."""
    trainer, config = TRAINERS[kind]
    machine = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    args = config(str(folder), max_completion_length=LENGTH, max_steps=1, logging_steps=1, **machine)
    made = trainer(policy, [Judge()], args, make_questions(), processing_class=make_tokenizer(), **given)
    made.remove_callback(PrinterCallback)
    return made


def test_a_rule_that_default_settings_cannot_train_says_what_to_change(policy, tmp_path):
    for (kind, name), message in REFUSED.items():
        with pytest.raises(ValueError, match=message):
            built(kind, "no/such-model", tmp_path, allocator=ALLOCATORS[name]())


def test_what_the_rule_learns_is_learned_by_the_users_own(make):
    vip = VIP()
    trainer = make(AllocatedGRPOTrainer, config={"max_steps": 1}, allocator=vip)
    assert trainer.allocation.allocator is not vip and trainer.allocation.allocator.predictor is vip.predictor
    before = vip.state_dict()
    trainer.train()
    assert repr(vip.state_dict()) != repr(before)


def test_a_warning_says_that_one_prompt_leaves_nothing_to_allocate(policy, tmp_path, caplog):
    built("grpo", policy, tmp_path, allocator=HORA())
    assert (
        caplog.text.count("hora gives every prompt 8 rollouts, because a batch has one prompt; give a batch more") == 1
    )
    caplog.clear()
    for allocator in (Uniform(), DAPO()):
        built("grpo", policy, tmp_path, allocator=allocator)
    assert "gives every prompt" not in caplog.text
