"""Responses of earlier steps in TRL's loss have the probabilities of the policy that sampled them, or of this one."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from apportion import AR3PO
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.tiny import Judge, Watch, log_probabilities, make_questions, make_tokenizer, policy_with

TEMPERATURE = 0.7
TIMES = {
    "one update a batch": {"max_steps": 8},
    "two batches an update": {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 4},
    "two updates a batch": {"steps_per_generation": 4},
    "two iterations": {"num_iterations": 2},
}
ALIGNED = {"one update a batch", "two batches an update"}
"""Cases in which the policy does not change within a batch, so that GRPO does not need old log-probabilities."""


@dataclass
class Remembering(Judge):
    """A judge that keeps the policy of each batch."""

    trainer: Any = None
    policies: list = field(default_factory=list)

    def __call__(self, *given, **columns):
        if not self.rounds:  # not a deep copy, whose wrapped forward would call the trained model
            self.policies.append(policy_with(self.trainer.model.state_dict()))
        return super().__call__(*given, **columns)


def decoded(ids):
    return make_tokenizer().decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("kind", "reuse", "times"),
    [
        (AllocatedGRPOTrainer, "replay", "one update a batch"),
        (AllocatedGRPOTrainer, "recompute", "two batches an update"),
        (AllocatedGRPOTrainer, "recompute", "two updates a batch"),
        (AllocatedRLOOTrainer, "replay", "two iterations"),
    ],
)
def test_old_log_probabilities_are_those_of_the_right_policy(make, tmp_path, kind, reuse, times):
    judge = Remembering(mark=lambda completion, k: float(completion[:1].isdigit() and completion[0] < "8"))
    shape = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4}
    config = shape | {"learning_rate": 3e-3, "max_steps": 12} | TIMES[times]
    given = {"questions": make_questions(8), "rollout_log": tmp_path / "log", "reward_funcs": [judge]}
    allocator = AR3PO(stages=1, rollouts_per_stage=2, reuse=reuse)
    judge.trainer = trainer = make(kind, config=config | {"temperature": TEMPERATURE}, allocator=allocator, **given)
    watch = Watch(judge)
    watch.on(trainer).train()
    early = [row for row in read_log(tmp_path / "log").to_pylist() if row["kept"] and row["reused_step"] is not None]
    changed, with_reused = [], 0
    for number, step in enumerate(watch.steps):
        sampled_now = {(call.prompt, call.ids) for call in step.calls}
        left = {(row["prompt"], row["completion"]): row["reused_step"] for row in early if row["step"] == number}
        with_reused += bool(left)
        rows = step.columns("old_per_token_logps", "old_logps", chunks=trainer.args.steps_per_generation)
        for prompt, ids, by_token, whole in rows:
            said, old = (decoded(prompt), decoded(ids)), whole if by_token is None else by_token
            earlier = None if (said[0], ids) in sampled_now else left.pop(said)
            if earlier is not None:
                assert (said[0], ids) in {(call.prompt, call.ids) for call in watch.steps[earlier].calls}
            if old is None:
                assert kind is AllocatedGRPOTrainer and times in ALIGNED and reuse == "recompute"
                continue
            behaviour = number if earlier is None or reuse == "recompute" else earlier
            with torch.no_grad():
                then, now, sampled = (
                    log_probabilities(judge.policies[place], prompt, ids, TEMPERATURE)
                    for place in (behaviour, number, number if earlier is None else earlier)
                )
            expected = then.sum() if kind is AllocatedRLOOTrainer else then
            torch.testing.assert_close(old, expected, rtol=1e-4, atol=1e-5)
            if earlier is not None:
                changed.append(float((now - sampled).abs().max()))
        assert not left
    assert with_reused >= 2
    if kind is AllocatedRLOOTrainer or times not in ALIGNED or reuse == "replay":
        assert len(changed) >= 2 and min(changed) > 1e-3
