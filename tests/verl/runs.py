"""Overrides of verl's configuration for an allocator, and the groups in the rows of a run."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from tests.verl.cpu.assets import EASE, make_tokenizer
from tests.verl.cpu.reward import compute_score

MANAGER = "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=apportion.verl.AllocatedAgentLoopManager"
SAVED = "trainer.checkpoint_callback_class=apportion.verl.SavedAllocation"
STOCK = ("algorithm.adv_estimator=rloo", "trainer.val_before_train=True", "trainer.test_freq=1")
"""verl without an allocator, with a validation before training and after each step. Many tests share this run."""
HORA = "{name: hora, rollouts_per_prompt: 4, pre_rollouts: 2, high: 8}"
FAULTY = (
    "actor_rollout_ref.rollout.agent.default_agent_loop=faulty",
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={Path(__file__).parent / 'cpu' / 'faults.yaml'}",
)
CRITIC = (
    "algorithm.adv_estimator=gae",
    "critic.optim.lr=1e-3",
    "critic.ppo_micro_batch_size_per_gpu=8",
    "critic.strategy=fsdp2",
    "critic.model.use_remove_padding=False",
    "critic.model.enable_gradient_checkpointing=False",
)


def allocated(allocator, *more, estimator="apportion_rloo", **settings):
    """Return overrides for ``allocator``, such as ``{name: vip}``, with more ``settings`` of the allocation."""
    own = "".join(f", {name}: {value}" for name, value in settings.items())
    return (f"+allocation={{allocator: {allocator}{own}}}", MANAGER, f"algorithm.adv_estimator={estimator}", *more)


def checkpointed(folder, step):
    """Return a function that returns whether verl's tracker in ``folder`` names the checkpoint of ``step``."""
    tracker = folder / "latest_checkpointed_iteration.txt"
    return lambda: tracker.exists() and tracker.read_text(encoding="utf-8") == str(step)


def trained(rows):
    """Return the rows that are not padding."""
    return [row for row in rows if not row["padding"]]


def groups_of(rows):
    """Return the rows that are not padding, by the name of their group."""
    found = defaultdict(list)
    for row in trained(rows):
        found[row["apportion"]["group"]].append(row)
    return dict(found)


def whole_groups(rows):
    """Return the rows by group. Check that each group is whole and of one prompt, with its own responses' rewards."""
    groups = groups_of(rows)
    for own in groups.values():
        rewards = own[0]["apportion"]["rewards"]
        assert len({row["index"] for row in own}) == 1
        assert sorted(row["apportion"]["position"] for row in own) == list(range(len(rewards)))
        for row in own:
            assert rewards[row["apportion"]["position"]] == sum(row["rm_scores"]) == scored_again(row)
    return groups


def scored_again(row):
    """Return the reward of the row's response from the reward function itself."""
    text = make_tokenizer().decode(row["responses"], skip_special_tokens=True)
    return compute_score("toy", text, str(EASE[row["index"] % len(EASE)]))


def rloo(rewards):
    """Return the leave-one-out advantages of one group; 0 for a group of one."""
    rewards = np.asarray(rewards, float)
    size = len(rewards)
    return rewards * 0 if size == 1 else rewards - (rewards.sum() - rewards) / (size - 1)
