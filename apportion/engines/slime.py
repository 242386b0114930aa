"""slime: functions that its command line names, for the choice of prompts, dead groups and advantages.

    --data-source-path apportion.engines.slime.chosen_prompts
    --dynamic-sampling-filter-path apportion.engines.slime.keep_informative
    --custom-reward-post-process-path apportion.engines.slime.advantages

slime requires groups of one size. The settings are ``apportion_selection``, ``apportion_baseline``,
``apportion_estimator``, ``apportion_outcome_gate`` and ``apportion_lost_after`` of ``--custom-config-path``; by default
mixed, none, grpo, false and 4096. ``apportion_verdict`` is the key of a reward's dictionary that is above 0 if correct.
"""

import copy
from pathlib import Path
from typing import Any

from apportion.allocators import Uniform
from apportion.engines.contract import EngineGroups, Opened
from apportion.engines.prompts import distinct_prompts
from apportion.engines.saved_state import save_state
from apportion.scheduler.decisions import TrainerAllocation
from apportion.types import Rollout

KEY = "apportion"
"""Key in a sample's metadata for the key of its group."""
KIND = "slime run"

_current: list[EngineGroups] = []
"""The groups of this process. slime gives its filters no data source."""


def chosen_prompts(args: Any) -> Any:
    """Return a data source that chooses prompts by what it observed of them. Of equal rows only the first counts.

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
            usual: dict[str, Any] = {"selection": "mixed", "baseline": None, "estimator": "grpo"}
            usual["outcome_gate"] = False
            chosen = {name: getattr(args, f"apportion_{name}", value) for name, value in usual.items()}
            allocation = TrainerAllocation(allocator=Uniform(), **chosen)
            prompts = distinct_prompts(self.dataset.origin_samples, _columns)
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
                self.groups.load(_file(args.load, rollout_id), KIND)

        def _group(self, opened: Opened) -> list[Any]:
            group = [copy.deepcopy(opened.prompt.data) for _ in range(opened.count)]
            for sample in group:
                sample.group_index, sample.index = self.sample_group_index, self.sample_index
                sample.metadata = {**(sample.metadata or {}), KEY: opened.key}
                self.sample_index += 1
            self.sample_group_index += 1
            return group

    return ChosenPrompts()


def keep_informative(args: Any, samples: list[Any], **unused: Any) -> bool:
    """Learn from a finished group, and return whether it has a gradient. A group of one is kept."""
    groups, first = _groups(), [one[0] if isinstance(one, list) else one for one in samples]
    rollouts = [_rollout(args, sample) for sample in first]
    groups.observe(_key(first[0]), rollouts)
    known = [rollout for rollout in rollouts if rollout is not None]
    return groups.teaches([float((each.reward or 0) if each.correct is None else each.correct) for each in known])


def advantages(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Return the rewards of ``samples``, and their advantages. Learn from groups that no filter has seen.

    A sample that failed has reward and advantage 0.
    """
    groups, keys = _groups(), [_key(sample) for sample in samples]
    flying = {group.key for group in groups.in_flight}
    rollouts = [_rollout(args, sample) for sample in samples]
    for key in (key for key in dict.fromkeys(keys) if key in flying):
        groups.observe(key, [rollout for rollout, own in zip(rollouts, keys, strict=True) if own == key])
    rewards = [0.0 if rollout is None else float(rollout.reward or 0.0) for rollout in rollouts]
    return rewards, groups.advantages(keys, rollouts).tolist()


def _rollout(args: Any, sample: Any) -> Rollout | None:
    """Return the rollout of ``sample``; None if it failed."""
    if sample.status.value in ("aborted", "failed") or sample.reward is None:
        return None
    key, reward = getattr(args, "apportion_verdict", None), sample.get_reward_value(args)
    verdict = None if key is None else sample.reward[key]
    return _groups().rollout(reward, sample.response_length, sample.rollout_log_probs or None, verdict)


def _key(sample: Any) -> str:
    if KEY not in (sample.metadata or {}):
        raise ValueError(
            f"a sample must keep the metadata {KEY!r} of its group, got {sample.metadata!r:.80}; have the generate "
            "function add to sample.metadata, not replace it"
        )
    return str(sample.metadata[KEY])


def _columns(sample: Any) -> dict[str, Any]:
    """Return the values that tell one row of slime's data set from another."""
    return {name: getattr(sample, name) for name in ("prompt", "label", "metadata", "multimodal_inputs")}


def _groups() -> EngineGroups:
    if not _current:
        raise ValueError(
            "the data source must be apportion's for its filters to learn, got another; set --data-source-path "
            "apportion.engines.slime.chosen_prompts"
        )
    return _current[0]


def _file(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"apportion_{rollout_id}.safetensors"
