"""What users of engines meet: rewards that fail, samples of wrong shapes, rows that look alike, files that are missing.

An engine's own types are plain objects here, with the fields that are read. The tests beside this one run the engines.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from apportion import Prompt
from apportion.engines import areal, prime_rl, skyrl, slime
from apportion.engines.contract import EngineGroups
from apportion.engines.prompts import distinct_prompts
from apportion.engines.saved_state import SavedStateError, save_state
from apportion.scheduler.decisions import TrainerAllocation

NAN = float("nan")
LOGPROBS = [-0.1, -0.2]


def make(size=4, prompts=8, **settings):
    own = {"allocator": "uniform", "estimator": "rloo"} | settings
    return EngineGroups(TrainerAllocation(**own), [Prompt(str(q)) for q in range(prompts)], group_size=size)


def test_a_failed_rollout_is_no_rollout_of_its_group_in_any_order():
    groups = make()
    one, other, none = (groups.next().key for _ in range(3))
    won, lost = groups.rollout(1.0), groups.rollout(0.0)
    failed = [groups.rollout(reward) for reward in (NAN, None, "yes")]
    assert groups.observe(none, failed) == 0 and groups.metrics()["in_flight"] == 2
    keys = [one, other, one, none, other, one, none]
    found = groups.advantages(keys, [won, None, lost, failed[0], won, None, failed[1]])
    alone = groups.advantages([one, one, other], [won, lost, won])
    assert found.tolist() == [alone[0], 0.0, alone[1], 0.0, alone[2], 0.0, 0.0] and alone[0] > 0


def sample(reward, key="", status="completed"):
    value = lambda args: reward if args.reward_key is None else reward[args.reward_key]  # noqa: E731
    return SimpleNamespace(
        reward=reward, metadata={slime.KEY: key} if key else {}, status=SimpleNamespace(value=status),
        response_length=2, rollout_log_probs=LOGPROBS, get_reward_value=value,
    )  # fmt: skip


@pytest.fixture
def slime_groups(monkeypatch):
    groups = make()
    monkeypatch.setattr(slime, "_current", [groups])
    return groups


ARGS = SimpleNamespace(reward_key=None)


@pytest.mark.parametrize("failed", [(None, "aborted"), (0.0, "failed"), (NAN, "completed"), (None, "completed")])
@pytest.mark.parametrize("filtered", [True, False])
def test_a_failed_sample_of_slime_is_not_trained_on_and_moves_no_other(slime_groups, failed, filtered):
    key = slime_groups.next().key
    samples = [sample(1.0, key), sample(failed[0], key, failed[1]), sample(0.0, key), sample(0.0, key)]
    if filtered:
        assert slime.keep_informative(ARGS, samples)
    rewards, advantages = slime.advantages(ARGS, samples)
    assert rewards == [1.0, 0.0, 0.0, 0.0] and not slime_groups.in_flight and slime_groups.counts["ignored"] == 0
    assert advantages[0] > 0 == advantages[1] > advantages[2] == advantages[3]


def test_a_sample_of_slime_without_its_group_and_rewards_by_name(monkeypatch):
    groups = make(baseline="optimal", estimator="reinforce")  # it reads log-probabilities
    monkeypatch.setattr(slime, "_current", [groups])
    key = groups.next().key
    with pytest.raises(ValueError, match=r"keep the metadata 'apportion' of its group, got \{\}; have the generate"):
        slime.keep_informative(ARGS, [sample(1.0), sample(0.0)])
    by_name = SimpleNamespace(reward_key="score")
    samples = [sample({"score": 1.0}, key), sample(None, key, "aborted"), sample({"score": 0.0}, key)]
    assert slime.keep_informative(by_name, samples)


def test_equal_rewards_are_kept_where_a_baseline_makes_them_teach(monkeypatch):
    for kept, settings in ((False, {}), (True, {"baseline": "spo", "estimator": "reinforce"})):
        groups = make(**settings)
        monkeypatch.setattr(slime, "_current", [groups])
        samples = [sample(1.0, groups.next().key)] * 4
        assert slime.keep_informative(ARGS, samples) == kept
        assert any(slime.advantages(ARGS, samples)[1]) == kept


def output(rewards, **own):
    ids = [[1, 2] for _ in rewards]
    return {"rewards": rewards, "response_ids": ids, "rollout_logprobs": [LOGPROBS for _ in rewards]} | own


def test_rewards_of_skyrl_that_fail_are_seen_and_trained_on_as_failed():
    groups = make()
    opened = groups.next()
    rewards = [1.0, NAN, [0.0, 0.0], [0.5, 0.5]]
    read = skyrl._rollouts(output(rewards), groups)
    assert [None if one is None else one.reward for one in read] == [1.0, None, 0.0, 1.0]
    steps = output([9.0, 1.0], is_last_step=[False, True], rollout_logprobs=None)
    assert [one.reward for one in skyrl._rollouts(steps, groups)] == [1.0] and skyrl._rollouts(output([]), groups) == []

    class Batch(dict):
        """Columns, and what is known of each row."""

    data = Batch(
        rewards=torch.tensor([[0.0, 1.0], [0.0, NAN], [0.0, 0.0], [0.5, 0.5], [0.0, 0.0]]),
        response_mask=torch.ones(5, 2), rollout_logprobs=None,
    )  # fmt: skip
    data.metadata = {"uids": [*[opened.key] * 4, "pad"]}
    found = skyrl._advantages(data, groups).flatten().tolist()
    assert found[1] == found[4] == 0 and found[0] == found[3] > 0 > found[2]


def trajectory(**own):
    found = {
        "rewards": torch.tensor([1.0]), "loss_mask": torch.tensor([[0, 1, 1]]),
        "logprobs": torch.tensor([[0.0, *LOGPROBS]]),
    }  # fmt: skip
    return {name: value for name, value in (found | own).items() if value is not None}


@pytest.mark.parametrize(
    ("own", "got"),
    [
        ({"rewards": torch.tensor([1.0, 0.0])}, r"rewards of shape \[2\]; let it sample once, as with n_samples=1"),
        ({"rewards": torch.tensor(1.0)}, r"rewards of shape \[\]"),
        ({"rewards": None}, "no rewards"),
        ({"logprobs": None}, "no logprobs"),
        ({"loss_mask": None}, "no loss_mask"),
    ],
)
def test_an_episode_of_areal_that_is_not_one_trajectory_is_refused(own, got):
    with pytest.raises(ValueError, match=f"must be one trajectory with rewards, loss_mask, logprobs, got {got}"):
        areal._rollout(trajectory(**own), make())
    read = areal._rollout(trajectory(), make())
    assert (read.reward, read.tokens) == (1.0, 2) and areal._rollout(
        trajectory(rewards=torch.tensor([NAN])), make()
    ) is None


def episode(*rewards, key="a"):
    agent = SimpleNamespace(trainable=True)
    traces = [SimpleNamespace(reward=reward, agent=agent, has_error=False, nodes=[]) for reward in rewards]
    return SimpleNamespace(traces=traces, task=SimpleNamespace(key=key))


def test_a_reward_of_prime_rl_that_is_no_number_is_a_failed_episode_for_sampler_and_gate():
    decisions = TrainerAllocation(allocator="uniform", selection="mixed")
    tasks = prime_rl.ChosenTasks([SimpleNamespace(key=key) for key in "abcd"], 4, decisions)
    key, gate = next(tasks).key, prime_rl.DeadGroups()
    group = [episode(1.0, key=key), episode(NAN, key=key), episode(key=key), episode(1.0, NAN, key=key)]
    tasks.observe(group)
    assert tasks.metrics()["in_flight"] == 0 and gate.admit(group) and not gate.admit([*group, episode(1.0)])


def test_a_checkpoint_of_other_prompts_or_of_another_engine_is_refused(tmp_path):
    path = tmp_path / "apportion.safetensors"
    save_state(path, skyrl.KIND, make(prompts=9).state_dict())
    message = r"restored with its own 9 prompts in their order, got 8; .*; start a new"
    with pytest.raises(SavedStateError, match=message):
        make().load(path, skyrl.KIND)
    with pytest.raises(SavedStateError, match=f"of a {areal.KIND}, got that of a '{skyrl.KIND}'; st"):
        make().load(path, areal.KIND)


def test_rows_that_look_alike_are_all_trained_on():
    """Questions about different images, and rows whose environment brings the prompt."""
    images = [np.zeros(2000), np.zeros(2000)]
    images[1][1000] = 1
    rows = [{"messages": text, "image": image} for text in ("Which?", "") for image in (*images, images[0])]
    found = distinct_prompts(rows, lambda row: {**row, "prompt": row["messages"]})
    assert [prompt.data is row for prompt, row in zip(found, [rows[0], rows[1], rows[3], rows[4]], strict=True)] == [
        True
    ] * 4
    assert len({prompt.id for prompt in found}) == 4 and found[0].id == Prompt("Which?").id
