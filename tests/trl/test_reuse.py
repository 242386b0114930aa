"""Responses of earlier steps in TRL's loss have the probabilities of the policy that sampled them, or of this one."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from apportion import AR3PO, PilotCommit
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.soak import case
from tests.trl.tiny import Judge, Watch, make_policy, make_questions

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
        if not self.rounds:
            policy = make_policy()  # not a deep copy, whose wrapped forward would call the trained model
            policy.load_state_dict(self.trainer.model.state_dict())
            self.policies.append(policy)
        return super().__call__(*given, **columns)


def forward(policy, prompt, ids):
    """Return log-probabilities [T] of one completion by a forward pass of that row alone."""
    with torch.no_grad():
        logits = policy(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / TEMPERATURE, -1)[torch.arange(len(ids)), torch.tensor(ids)]


def rows_of(chunks):
    """Yield prompt ids, completion ids and old log-probabilities, or None, of each unmasked row."""
    for chunk in chunks:
        for i in range(len(chunk["advantages"])):
            own = chunk["completion_mask"][i].bool()
            if not own.any():
                continue
            old = None
            if "old_per_token_logps" in chunk:
                old = chunk["old_per_token_logps"][i][own]
            elif "old_logps" in chunk:
                old = chunk["old_logps"][i]
            prompt = chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()]
            yield tuple(prompt.tolist()), tuple(chunk["completion_ids"][i][own].tolist()), old


@pytest.mark.parametrize(
    ("kind", "reuse", "times"),
    [
        case(kind, reuse, times, suite=(first + second + third) % 2 == 0)
        for first, kind in enumerate((AllocatedGRPOTrainer, AllocatedRLOOTrainer))
        for second, reuse in enumerate(("replay", "recompute"))
        for third, times in enumerate(TIMES)
    ],
)
def test_old_log_probabilities_are_those_of_the_right_policy(make, tmp_path, kind, reuse, times):
    judge = Remembering()
    shape = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4}
    config = shape | {"learning_rate": 3e-3, "max_steps": 12, "temperature": TEMPERATURE} | TIMES[times]
    judge.trainer = trainer = make(
        kind,
        config=config,
        reward_funcs=[judge],
        questions=make_questions(8).remove_columns("k").add_column("k", [8] * 8),
        allocator=AR3PO(stages=1, rollouts_per_stage=2, reuse=reuse),
        rollout_log=tmp_path / "log",
    )
    watch = Watch(judge)
    watch.on(trainer)
    trainer.train()
    kept = {}
    for row in read_log(tmp_path / "log").to_pylist():
        if row["kept"] and row["reused_step"] is not None:
            kept.setdefault(row["step"], []).append((row["prompt"], row["completion"], row["reused_step"]))
    assert len(kept) >= 2

    def decoded(ids):
        return trainer.processing_class.decode(ids, skip_special_tokens=True)

    changed = []
    for number, step in enumerate(watch.steps):
        sampled_now = {(call.prompt, call.ids) for call in step.calls}
        left = {(prompt, completion): earlier for prompt, completion, earlier in kept.get(number, ())}
        for prompt, ids, old in rows_of(step.chunks[: trainer.args.steps_per_generation]):
            said = decoded(prompt), decoded(ids)
            earlier = None if (said[0], ids) in sampled_now else left.pop(said)
            if earlier is not None:
                assert (said[0], ids) in {(call.prompt, call.ids) for call in watch.steps[earlier].calls}
            if old is None:
                assert kind is AllocatedGRPOTrainer and times in ALIGNED and reuse == "recompute"
                continue
            behaviour = number if earlier is None or reuse == "recompute" else earlier
            expected, now = (forward(judge.policies[place], prompt, ids) for place in (behaviour, number))
            if kind is AllocatedRLOOTrainer:
                expected = expected.sum()
            torch.testing.assert_close(old, expected, rtol=1e-4, atol=1e-5)
            if earlier is not None:
                changed.append(float((now - forward(judge.policies[earlier], prompt, ids)).abs().max()))
        assert not left
    if kind is AllocatedRLOOTrainer or times not in ALIGNED or reuse == "replay":
        assert len(changed) >= 2 and min(changed) > 1e-3


@pytest.mark.parametrize("kind", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
def test_pilots_of_an_earlier_step_are_trained_on_with_their_commits(make, tmp_path, kind):
    """Eight questions, four a batch: prompts that passed too late come again before their pilots are too old."""
    trainer = make(
        kind,
        config={"max_steps": 10, "temperature": TEMPERATURE},
        reward_funcs=[Judge()],
        questions=make_questions(8),
        allocator=PilotCommit(pilots=4, commits=3, target=1, max_rounds=3),
        rollout_log=tmp_path / "log",
    )
    watch = Watch(trainer.reward_funcs[0])
    watch.on(trainer)
    trainer.train()
    reused = 0
    for number, step in enumerate(watch.steps):
        log = [row for row in read_log(tmp_path / "log").to_pylist() if row["step"] == number and row["kept"]]
        assert sorted(row["completion"] for row in log) == sorted(
            trainer.processing_class.decode(ids, skip_special_tokens=True) for _, ids, _ in rows_of(step.chunks)
        )
        assert len(log) in (0, 7) and len({row["prompt"] for row in log}) <= 1
        rewards = [row["reward"] for row in log]
        early = [row for row in log if row["reused_step"] is not None]
        assert len(early) in (0, 4) and all(0 < number - row["reused_step"] <= 4 for row in early)
        reused += len(early)
        mean = sum(rewards) / 7 if rewards else 0.0
        for row in log:
            sign = row["reward"] - mean
            assert row["advantage"] * sign > 0 or row["advantage"] == pytest.approx(sign)
    assert reused >= 8
