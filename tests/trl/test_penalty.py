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
from tests.trl.test_parity import assert_same
from tests.trl.tiny import assert_rows, ids_of, log_probabilities, make_policy, policy_with, trained, whole_groups

BETA = 0.5
STRONG = {"beta": BETA, "learning_rate": 1e-2, "max_steps": 2}


def divergence(policy, call):
    """Return the KL divergence of a completion under ``policy`` from the initial policy."""
    with torch.no_grad():
        own, held = (log_probabilities(each, ids_of(call.prompt), call.ids) for each in (policy, make_policy()))
    return float((own - held).sum())


@pytest.mark.parametrize("estimator", [None, "rloo"])
def test_the_penalty_is_in_the_advantages_of_joined_groups(run, tmp_path, estimator):
    given = {"allocator": HORA(pre_rollouts=3, high=16), "estimator": estimator, "rollout_log": tmp_path / "log"}
    trainer, watch, history = run(AllocatedRLOOTrainer, config=STRONG, **given)
    away = []
    for step, (weights, _), logged in zip(watch.steps, watch.updates, history, strict=True):
        policy = policy_with(weights)
        apart = {call: divergence(policy, call) for call in step.calls}
        assert_rows(step.rows, whole_groups(trainer, step, lambda call, kl=apart: call.score - BETA * kl[call]))
        away.append(sum(apart[call] for call in step.calls) / sum(len(call.ids) for call in step.calls))
        assert logged["kl"] == pytest.approx(away[-1], rel=1e-3, abs=1e-5) and len(step.rounds) == 2
    assert away[0] == pytest.approx(0, abs=1e-6) and max(away[1:]) > 1e-3
    # what the allocator learns from
    assert set(read_log(tmp_path / "log").column("reward").to_pylist()) == {0.0, 1.0}


def test_an_adapter_is_penalised_by_the_model_without_it(make, tmp_path):
    runs = []
    for trainer, given in ((RLOOTrainer, {}), (AllocatedRLOOTrainer, {"allocator": Uniform(), "weighting": None})):
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        torch.manual_seed(0)  # TRL 1.0 makes the adapter before it seeds
        built = make(trainer, folder=tmp_path / trainer.__name__, config=STRONG, peft_config=lora, **given)
        history = trained(built)
        runs.append((history, {name: value for name, value in built.model.state_dict().items() if "lora_" in name}))
    assert_same(*runs)
    assert runs[0][0][1]["kl"] != 0


def test_rewards_from_votes_are_penalised_too(make):
    given = {"allocator": TTRL(max_samples=8, min_samples=8), "extract": lambda text: text[:1] or None}
    built = make(AllocatedRLOOTrainer, config=STRONG, reward_funcs=[], **given)
    first, second, _ = trained(built)
    assert first["kl"] == pytest.approx(0, abs=1e-6) and second["kl"] != 0
    assert second["frac_reward_zero_std"] == 0  # completions of equal votes differ by their penalties
