"""slime: which prompts, dead groups, and advantages, by the paths of its command line. Its rollouts call them.

    --data-source-path apportion.engines.slime.chosen_prompts
    --dynamic-sampling-filter-path apportion.engines.slime.keep_informative
    --custom-reward-post-process-path apportion.engines.slime.advantages

slime requires groups of one size. The settings are ``apportion_selection``, ``apportion_baseline``,
``apportion_estimator`` and ``apportion_lost_after`` of ``--custom-config-path``; by default mixed, none, grpo and 4096.
"""

import copy
from pathlib import Path
from typing import Any

from apportion.allocators import Uniform
from apportion.engines.contract import EngineGroups, Opened, differ
from apportion.engines.decisions import TrainerAllocation
from apportion.engines.prompts import prompt_of
from apportion.engines.saved_state import load_state, save_state
from apportion.types import Rollout

KEY = "apportion"
"""Where a sample keeps the key of its group, in its metadata."""
KIND = "slime run"

_current: list[EngineGroups] = []
"""The groups of this process. slime gives its filters no data source."""


def chosen_prompts(args: Any) -> Any:
    """Return a data source that chooses prompts by what was observed of them. Of equal prompts the first row stands.

    Raises ValueError for settings that do not fit.
    """
    from slime.rollout.data_source import RolloutDataSourceWithBuffer  # noqa: PLC0415 - the engine

    class ChosenPrompts(RolloutDataSourceWithBuffer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(args)
            if self.dataset is None:
                raise ValueError(
                    "slime must have a data set to choose from, got none; set --prompt-data and leave "
                    "--disable-rollout-global-dataset out"
                )
            self.samples: dict[str, Any] = {}
            for sample in self.dataset.origin_samples:
                self.samples.setdefault(prompt_of({"prompt": sample.prompt}).id, sample)
            usual: dict[str, Any] = {"selection": "mixed", "baseline": None, "estimator": "grpo"}
            chosen = {name: getattr(args, f"apportion_{name}", value) for name, value in usual.items()}
            allocation = TrainerAllocation(allocator=Uniform(), **chosen)
            prompts = [prompt_of({"prompt": sample.prompt}) for sample in self.samples.values()]
            size, seed = args.n_samples_per_prompt, args.rollout_seed
            lost_after = getattr(args, "apportion_lost_after", 4096)  # slime drops what it has sampled too much
            self.groups = EngineGroups(allocation, prompts, group_size=size, seed=seed, lost_after=lost_after)
            _current[:] = [self.groups]

        def get_samples(self, num_samples: int) -> list[list[Any]]:
            """Return groups of samples: those that slime aborted first, then new ones."""
            found: list[list[Any]] = self._get_samples_from_buffer(num_samples)
            return found + [self._group(self.groups.next()) for _ in range(num_samples - len(found))]

        def save(self, rollout_id: int) -> None:
            """Save the groups beside slime's own state."""
            super().save(rollout_id)
            save_state(_file(args.save, rollout_id), KIND, self.groups.state_dict())

        def load(self, rollout_id: int | None = None) -> None:
            """Restore the groups. A run that is not resumed has none."""
            super().load(rollout_id)
            if args.load is not None and rollout_id is not None and rollout_id >= 0:
                remedy = "start a new run from the weights of the checkpoint"
                self.groups.load_state_dict(load_state(_file(args.load, rollout_id), KIND, remedy=remedy))

        def _group(self, opened: Opened) -> list[Any]:
            group = [copy.deepcopy(self.samples[opened.prompt.id]) for _ in range(opened.count)]
            for sample in group:
                sample.group_index, sample.index = self.sample_group_index, self.sample_index
                sample.metadata = {**(sample.metadata or {}), KEY: opened.key}
                self.sample_index += 1
            self.sample_group_index += 1
            return group

    return ChosenPrompts()


def keep_informative(args: Any, samples: list[Any], **unused: Any) -> bool:
    """Learn from a finished group, and return whether its rewards differ. A group of one is kept."""
    return differ(_observe(args, samples))


def advantages(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Return the rewards of ``samples``, and their advantages. Learn from groups that no filter has seen."""
    groups, keys = _groups(), [sample.metadata[KEY] for sample in samples]
    flying = {group.key for group in groups.in_flight}
    for key in dict.fromkeys(keys):
        if key in flying:
            _observe(args, [sample for sample in samples if sample.metadata[KEY] == key])
    rewards = [float(sample.get_reward_value(args)) for sample in samples]
    rollouts = [
        Rollout(reward=reward, tokens=sample.response_length) for sample, reward in zip(samples, rewards, strict=True)
    ]
    return rewards, groups.advantages(keys, rollouts).tolist()


def _observe(args: Any, samples: list[Any]) -> list[float]:
    """Report a group, and return the rewards of its samples that did not fail."""
    groups, first = _groups(), [one[0] if isinstance(one, list) else one for one in samples]
    rollouts = [
        None if sample.status.value in ("aborted", "failed") else groups.rollout(sample.get_reward_value(args))
        for sample in first
    ]
    groups.observe(first[0].metadata[KEY], rollouts)
    return [float(rollout.reward or 0.0) for rollout in rollouts if rollout is not None]


def _groups() -> EngineGroups:
    if not _current:
        raise ValueError(
            "the data source must be apportion's for its filters to learn, got another; set --data-source-path "
            "apportion.engines.slime.chosen_prompts"
        )
    return _current[0]


def _file(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"apportion_{rollout_id}.safetensors"
