"""SkyRL's fully asynchronous trainer: which prompt, how many rollouts, which baseline, with its own scheduler.

Its workers ask the data loader made here for the next prompt. With ``generator.step_wise_trajectories`` groups may
differ in size, and a rule may say how many rollouts. Otherwise SkyRL requires equal groups. An ``estimator`` of the
allocation takes the place of SkyRL's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apportion.engines.contract import EngineGroups
from apportion.engines.prompts import prompt_of
from apportion.engines.saved_state import save_state
from apportion.scheduler.decisions import TrainerAllocation
from apportion.types import Rollout

FILE, KIND = "apportion.safetensors", "SkyRL run"
COPIED = ("prompts", "env_classes", "env_extras", "trajectory_ids")
"""What a generator gets one copy of for each rollout."""


def allocated(base: type) -> type:
    """Return ``base``, SkyRL's ``FullyAsyncRayPPOTrainer`` or a subclass, with one more argument: ``allocation``.

    Return the result from ``get_trainer`` of your experiment. A prompt may come several times in an epoch, which has as
    many groups as before. Raises ValueError for an allocation that SkyRL cannot follow.
    """

    class Allocated(base):  # type: ignore[misc]
        generator: Any

        def __init__(self, *given: Any, allocation: TrainerAllocation, **named: Any) -> None:
            super().__init__(*given, **named)
            cfg = self.cfg
            if "://" in str(cfg.trainer.ckpt_path):
                raise ValueError(
                    f"trainer.ckpt_path must be a local folder, because the allocation is saved there, got "
                    f"{cfg.trainer.ckpt_path}; mount it, or give a folder"
                )
            steps = cfg.generator.step_wise_trajectories
            rows = [self.train_dataset[row] for row in range(len(self.train_dataset))]
            self.allocated_groups = EngineGroups(
                allocation,
                [prompt_of({"prompt": messages, "uid": uid}, "uid") for messages, _, _, uid in rows],
                group_size=None if steps else cfg.generator.n_samples_per_prompt,
                seed=cfg.trainer.seed,
                lost_after=max(4096, 8 * self.num_parallel_generation_workers),
            )
            self.async_train_dataloader = _loader(self)
            self.generator = _Generator(self.generator, self.allocated_groups)

        def compute_advantages_and_returns(self, data: Any) -> Any:
            """Return ``data`` with the advantages of the allocation. SkyRL's metrics are of its own estimator."""
            data = super().compute_advantages_and_returns(data)
            if self.allocated_groups.decisions.estimator is not None:
                data["advantages"] = _advantages(data, self.allocated_groups) * data["response_mask"]
                data["returns"] = data["advantages"].clone()
            return data

        def save_checkpoints(self) -> str:
            """Save the groups beside SkyRL's own state."""
            state = self.allocated_groups.state_dict()  # first: workers go on while the rest is saved
            folder: str = super().save_checkpoints()
            save_state(Path(folder) / FILE, KIND, state)
            return folder

        def load_checkpoints(self) -> tuple[Any, ...]:
            """Load the groups. Raise SavedStateError if the checkpoint has none."""
            found: tuple[Any, ...] = super().load_checkpoints()
            if found[0] > 0:
                self.allocated_groups.load(Path(found[1]) / FILE, KIND)
            return found

    Allocated.__name__ = Allocated.__qualname__ = f"Allocated{base.__name__}"
    return Allocated


def _loader(trainer: Any) -> Any:
    """Return SkyRL's loader of ``trainer`` with prompts that the allocation chooses, under keys of their own."""
    own = trainer.async_train_dataloader
    groups, dataset, length = trainer.allocated_groups, trainer.train_dataset, own._effective_dataloader_length

    class Loader(type(own)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(own.__dict__)
            self.issued = 0

        async def get_next_non_consumed_data(self) -> Any:
            """Return the next prompt as a batch of one, and None at the end of the epoch."""
            async with self._lock:
                if self.issued >= length:
                    self._exhausted = True
                    return None
                self.issued += 1
                opened = groups.next()
                (row,) = dataset.collate_fn([dataset[int(opened.prompt.id)]])
                return [row | {"uid": opened.key}]

        def load_state_from_checkpoint(self, consumed: set[str], filtered: set[str] | None = None) -> None:
            """Continue the epoch. Prompts that were sampled but not trained on are issued again."""
            super().load_state_from_checkpoint(consumed, filtered)
            self.issued = len(consumed)

        async def reset_at_epoch_end(self) -> None:
            """Begin the next epoch."""
            await super().reset_at_epoch_end()
            self.issued = 0

    return Loader()


class _Generator:
    """A ``GeneratorInterface`` that lets ``inner`` sample as many rollouts as are decided, and observes them."""

    def __init__(self, inner: Any, groups: EngineGroups) -> None:
        self.inner, self.groups = inner, groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(self, input_batch: Any, **named: Any) -> Any:
        """Return the rollouts of a group that is in flight. Other batches, such as evaluations, are passed on."""
        ids = input_batch.get("trajectory_ids") or [None]
        key = getattr(ids[0], "instance_id", None)
        count = next((each.count for each in self.groups.in_flight if each.key == key), 0)
        if not count:
            return await self.inner.generate(input_batch, **named)
        outputs, asked = list[Any](), 0
        while count:
            outputs.append(await self.inner.generate(_resized(input_batch, asked, count), **named))
            asked += count
            count = self.groups.observe(str(key), _rollouts(outputs[-1], self.groups))
        if len(outputs) == 1:
            return outputs[0]
        from skyrl.train.generators.utils import concatenate_generator_outputs  # noqa: PLC0415 - the engine

        return concatenate_generator_outputs(outputs, step_wise=outputs[0].get("is_last_step") is not None)


def _resized(batch: Mapping[str, Any], start: int, count: int) -> dict[str, Any]:
    """Return the input of ``count`` rollouts of the one prompt in ``batch``, numbered from ``start``."""
    resized = dict(batch) | {name: [batch[name][0]] * count for name in COPIED if batch.get(name)}
    first = batch["trajectory_ids"][0]
    resized["trajectory_ids"] = [type(first)(first.instance_id, start + number) for number in range(count)]
    return resized


def _rollouts(output: Mapping[str, Any], groups: EngineGroups) -> list[Rollout | None]:
    """Return the rollouts of ``output``, each by its last step."""
    logprobs, found = output.get("rollout_logprobs"), []
    last = output.get("is_last_step") or [True] * len(output["response_ids"])
    for row in np.flatnonzero(last).tolist():
        reward = output["rewards"][row]
        total = float(np.sum(reward)) if isinstance(reward, list) else reward
        found.append(groups.rollout(total, len(output["response_ids"][row]), logprobs and logprobs[row]))
    return found


def _advantages(data: Any, groups: EngineGroups) -> Any:
    """Return the advantage of each row of ``data``, [N, 1]: that of its rollout, and 0 for padding."""
    rows = len(data["rewards"])
    ends = np.array(data.metadata.get("is_last_step") or [True] * rows)
    owner = np.cumsum(np.append(0, ends[:-1]))
    mask = data["response_mask"].bool()
    keys, totals = [str(uid) for uid in data.metadata["uids"]], data["rewards"].sum(dim=-1).tolist()
    lengths = np.bincount(owner, mask.sum(dim=-1).numpy())
    known = [row for row in np.flatnonzero(ends).tolist() if "#" in keys[row]]
    logprobs, rollouts = data["rollout_logprobs"], []
    for row in known:
        own = None if logprobs is None else logprobs[row][mask[row]].double()
        rollouts.append(groups.rollout(totals[row], int(lengths[owner[row]]), own))
    found = np.zeros(int(owner[-1]) + 1)
    found[owner[known]] = groups.advantages([keys[row] for row in known], rollouts)
    return data["rewards"].new_tensor(found[owner]).unsqueeze(-1)
