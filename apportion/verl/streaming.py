"""verl's asynchronous trainers under a stream: what they need in the configuration, and what they train on.

verl's trainer asks its replay buffer for prompts. A buffer of ours asks the coordinator, so that the stream makes the
updates. verl offers a setting for this, ``trainer.v1.sampler.custom_sampler``.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from apportion.scheduler import OfferedScheduler, Prompts
from apportion.types import Prompt
from apportion.verl.advice import row_multiple
from apportion.verl.coordinator.messages import TrainerUpdate
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.rows import PARTITION

NextUpdate = Callable[[bool, set[str] | None], TrainerUpdate]

MODES = ("separate_async", "colocate_async")
"""verl's trainers that sample continuously."""

BUFFER = {"path": "pkg://apportion.verl.streaming", "name": "StreamedReplayBuffer"}
"""Value of ``trainer.v1.sampler.custom_sampler`` under a stream."""

POLL_SECONDS = 0.05
"""Polling interval while the trainer waits for an update."""

UNBOUNDED = 1 << 30
"""The maximum staleness if verl's control of staleness is off."""


class StreamedReplayBuffer(ReplayBufferAsync):  # type: ignore[misc]
    """verl's buffer, whose batches of training are the updates of the coordinator's stream. Validation is verl's.

    ``next_update`` is set by the manager of this process. It takes what ``Coordinator.next_update`` does.
    """

    next_update: ClassVar[NextUpdate | None] = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._asked = False

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Return the rows of the next update, whatever ``batch_size`` is. Request the prompts that the stream lacks.

        Raises RuntimeError if the run cannot continue.
        """
        if partition_id != PARTITION:
            return super().sample(global_steps, partition_id, batch_size)
        next_update, done, queue = type(self).next_update, True, None
        if next_update is None:
            raise RuntimeError("an agent-loop manager must be created before the trainer asks for rows, got none")
        if not self._asked:
            self._sync_metadata_from_transfer_queue()
            queue = self.finished_keys[PARTITION] | self.failure_keys[PARTITION]
            self._asked = True
        while True:
            update = next_update(done, queue)
            done, queue = False, None
            if update.uids or update.dropped:
                self._sync_metadata_from_transfer_queue()
                self._clear_groups(PARTITION, set(update.dropped))
            if update.wanted:
                self.refill_fn(update.wanted)
            if update.uids:
                return self._materialize_batch(PARTITION, list(update.uids), dict(self.partitions[PARTITION])), {}
            if not update.wanted:
                time.sleep(POLL_SECONDS)


def with_buffer(config: DictConfig) -> None:
    """Have verl's trainer of ``config`` take the updates of a stream, unless a custom sampler is set already."""
    sampler = config.trainer.v1.sampler
    if OmegaConf.select(sampler, "custom_sampler.path") is None:
        with open_dict(sampler):
            sampler.custom_sampler = dict(BUFFER)


def stream_of(config: DictConfig, allocation: VerlAllocation, prompts: Sequence[Prompt]) -> OfferedScheduler:
    """Return the stream over ``prompts``, the data set, each once. Raises ValueError for a rule that compares prompts.

    An update of the stream is one of verl's mini-batches. verl counts staleness in steps, of ``parameter_sync_step``
    updates each. A threshold of T steps, the present one included, is that many updates less one, counted from the
    first update of the step in which a prompt was opened. verl pads the rows of an update to whole mini-batches, so it
    has no more of them than it is expected to fill.
    """
    v1 = config.trainer.v1
    updates = int(v1.get(v1.trainer_mode, {}).get("parameter_sync_step", 1))
    threshold = v1.sampler.max_off_policy_threshold
    each, multiple = int(config.data.train_batch_size) // updates, row_multiple(config)
    expected = allocation.allocator.size(each).kept
    due = Prompts(
        each,
        UNBOUNDED if threshold is None else int(threshold) * updates - 1,
        None if expected is None else -(-expected // multiple) * multiple,
        updates,
    )
    return OfferedScheduler(allocation, prompts, due, attempts=1 + allocation.retries)


def check_stream(config: DictConfig, allocation: VerlAllocation) -> None:
    """Raise ValueError if a stream is asked for and cannot work, or if its buffer is set without one."""
    v1, given = config.trainer.v1, OmegaConf.select(config, "trainer.v1.sampler.custom_sampler") or {}
    if ({name: given.get(name) for name in BUFFER} == BUFFER) != allocation.stream:
        raise ValueError(
            f"trainer.v1.sampler.custom_sampler must be {BUFFER['name']} of {BUFFER['path']} with allocation.stream, "
            f"and only then, got {given.get('name')} of {given.get('path')} with stream={allocation.stream}; set both, "
            "or neither"
        )
    if not allocation.stream:
        return
    if v1.trainer_mode not in MODES:
        raise ValueError(
            f"trainer.v1.trainer_mode must be {' or '.join(MODES)} with allocation.stream, got {v1.trainer_mode}; a "
            "synchronous trainer waits for its batch, so leave stream out"
        )
    for setting in ("algorithm.filter_groups.enable", "trainer.v1.separate_async.hybrid_rollout.enable_switch"):
        if OmegaConf.select(config, setting):
            raise ValueError(
                f"{setting} must be False with allocation.stream, got True; it takes groups that the stream has not "
                "given to the trainer"
            )
    try:
        stream_of(config, allocation, [Prompt("a prompt")])
    except ValueError as error:
        raise ValueError(
            f"allocation.stream must fit the rule and verl's batches, got {allocation.allocator.name}: {error}; a rule "
            "fits that plans each prompt alone, or splits rollouts_per_prompt by a price"
        ) from error
