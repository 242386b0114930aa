"""Measure what verl itself does about as many keys: its replay buffer reads all of TransferQueue's at every poll."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from uuid import UUID

from benchmarks.common import ROOT

ROWS_AT_ONCE = 20_000
"""Keys that are written in one call."""


@dataclass(frozen=True)
class Polled:
    """The ``keys`` in the TransferQueue, and the time of one poll on the clock and of the trainer's processor."""

    keys: int
    seconds: float
    cpu_seconds: float


def polled(prompts: int, rollouts: int, polls: int) -> list[Polled]:
    """Return the cost of ``polls`` polls with the keys of ``prompts`` prompts and their ``rollouts`` rows each."""
    import ray  # noqa: PLC0415 - only this part needs Ray and verl, which take seconds to import
    import transfer_queue as tq  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # noqa: PLC0415

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=200_000_000,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        try:
            keys = prompts * (1 + rollouts)
            storage = {"num_data_storage_units": 1, "total_storage_size": 2 * keys}
            tq.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
            _write(tq, prompts, rollouts)
            buffer = ReplayBuffer("sync", {}, None, "drop", {}, train_batch_size=1, gen_batch_size=1)
            found = []
            for _ in range(polls):
                seconds, cpu_seconds = time.perf_counter(), time.process_time()
                buffer._sync_metadata_from_transfer_queue()
                seconds, cpu_seconds = time.perf_counter() - seconds, time.process_time() - cpu_seconds
                held = sum(map(len, buffer.partitions.values())) + sum(map(len, buffer.finished_keys.values()))
                assert held == keys, f"{keys} keys were written, got {held}"
                found.append(Polled(keys, seconds, cpu_seconds))
            tq.close()
            return found
        finally:
            ray.shutdown()


def _write(queue: object, prompts: int, rollouts: int) -> None:
    """Write the tags that verl's workers write, without the rows themselves, which a poll does not read."""
    keys: list[str] = []
    tags: list[dict[str, object]] = []
    for q in range(prompts):
        uid = str(UUID(int=q << 64))
        keys.append(uid)
        tags.append({"is_prompt": True, "status": "finished", "global_steps": 1})
        for session in range(rollouts):
            keys.append(f"{uid}_{session}_0")
            tags.append({"prompt_len": 64, "response_len": 500, "seq_len": 564, "global_steps": 1, "status": "success"})
    for first in range(0, len(keys), ROWS_AT_ONCE):
        some = slice(first, first + ROWS_AT_ONCE)
        queue.kv_batch_put(keys=keys[some], partition_id="train", tags=tags[some])  # type: ignore[attr-defined]
