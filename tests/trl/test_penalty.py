"""RLOO's KL penalty: TRL subtracts it from the rewards, before the mean of the others is subtracted.

``test_parity`` and ``test_ranks`` show that under ``Uniform`` nothing differs from TRL.
"""

import pytest
import torch
from peft import LoraConfig
from trl import RLOOTrainer

from apportion import HORA, TTRL, Uniform
from apportion.records import read_log
from apportion.trl import AllocatedRLOOTrainer
from apportion.trl.metrics import Metrics
from tests.trl.test_parity import assert_same
from tests.trl.tiny import (
    Judge,
    Row,
    Watch,
    assert_rows,
    group_advantages,
    log_probabilities,
    make_policy,
    make_tokenizer,
    trained,
)

BETA = 0.5
STRONG = {"beta": BETA, "learning_rate": 1e-2}
TOKENIZER = make_tokenizer()


def divergences(weights, calls):
    """Return the KL divergence of each completion from the initial policy, and its number of tokens."""
    policy, reference = make_policy(), make_policy()
    policy.load_state_dict(weights)
    found = []
    for call in calls:
        prompt = TOKENIZER(call.prompt)["input_ids"]
        with torch.no_grad():
            own, held = (log_probabilities(each, prompt, call.ids) for each in (policy, reference))
        found.append((float((own - held).sum()), len(call.ids)))
    return found


def rule():
    return HORA(pre_rollouts=3, high=16)


@pytest.mark.parametrize("estimator", [None, "rloo"])
def test_the_penalty_is_in_the_advantages_of_joined_groups(make, tmp_path, estimator):
    watch, log = Watch(Judge()), tmp_path / "log"
    given = {"allocator": rule(), "estimator": estimator, "rollout_log": log}
    trainer = watch.on(make(AllocatedRLOOTrainer, config=STRONG, reward_funcs=[watch.judge], **given))
    history = trained(trainer)
    away = []
    for step, (weights, _), logged in zip(watch.steps, watch.updates, history, strict=False):
        expected, apart = [], []
        for prompt, calls in step.by_prompt.items():
            own = divergences(weights, calls)
            rewards = [call.score - BETA * kl for call, (kl, _) in zip(calls, own, strict=True)]
            ids = tuple(TOKENIZER(prompt)["input_ids"])
            advantages = group_advantages(trainer, rewards)
            expected += [Row(ids, call.ids, each) for call, each in zip(calls, advantages, strict=True)]
            apart += own
        assert_rows(step.rows, expected)
        mean = sum(kl for kl, _ in apart) / sum(tokens for _, tokens in apart)
        assert logged["kl"] == pytest.approx(mean, rel=1e-3, abs=1e-5)
        away.append(mean)
        assert len(step.rounds) == 2
    assert away[0] == pytest.approx(0, abs=1e-6) and max(away[1:]) > 1e-3
    assert set(read_log(log).column("reward").to_pylist()) == {0.0, 1.0}  # what the allocator learns from


def test_an_adapter_is_penalised_by_the_model_without_it(make, tmp_path):
    runs = {}
    for folder, trainer, given in (
        ("theirs", RLOOTrainer, {}),
        ("ours", AllocatedRLOOTrainer, {"allocator": Uniform(), "weighting": None}),
    ):
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        torch.manual_seed(0)  # TRL 1.0 makes the adapter before it seeds
        built = make(trainer, folder=tmp_path / folder, config=STRONG, peft_config=lora, **given)
        history = trained(built)
        runs[folder] = history, {name: value for name, value in built.model.state_dict().items() if "lora_" in name}
    assert_same(runs["ours"], runs["theirs"])
    assert runs["theirs"][0][2]["kl"] != 0


def test_rewards_from_votes_are_penalised_too(make):
    allocator = TTRL(max_samples=8, min_samples=8)
    config = STRONG | {"max_steps": 2}
    given = {"reward_funcs": [], "allocator": allocator, "extract": lambda text: text[:1] or None}
    first, second, _ = trained(make(AllocatedRLOOTrainer, config=config, **given))
    assert first["kl"] == pytest.approx(0, abs=1e-6) and second["kl"] != 0
    assert second["frac_reward_zero_std"] == 0  # completions of equal votes differ by their penalties


def test_kl_of_several_rounds_is_a_mean_over_tokens():
    metrics = Metrics()
    metrics.add({"kl": [0.3], "completions/mean_length": [2.0]}, 4)
    metrics.add({"kl": [0.1], "completions/mean_length": [6.0]}, 4)
    assert metrics.combine()["kl"] == pytest.approx((0.3 * 8 + 0.1 * 24) / 32)
