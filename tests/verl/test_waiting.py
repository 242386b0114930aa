"""The coordinator's error ends the trainer's wait in verl's replay buffer."""

import time

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from apportion.verl.seam import call_before

LOOK = "_sync_metadata_from_transfer_queue"


def buffer_of(kind):
    return kind("sync", OmegaConf.create(), None, "drop", OmegaConf.create(), poll_interval=0.05)


def put(queue, status):
    tag = {"is_prompt": True, "status": status, "global_steps": 1}
    queue.kv_batch_put(keys=["u"], partition_id="train", tags=[tag])


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
def test_an_error_ends_the_wait_for_prompts_and_finished_ones_are_found_as_before(queue, kind):
    ends = time.monotonic() + 0.5

    def check(buffer):
        if time.monotonic() > ends:
            raise RuntimeError("allocation failed at step 1: no belief")

    call_before(ReplayBuffer, LOOK, check)
    try:
        put(queue, "running")
        with pytest.raises(RuntimeError, match="allocation failed at step 1: no belief"):
            buffer_of(kind).sample(1, "train", 1)
        assert time.monotonic() < ends + 10
    finally:
        call_before(ReplayBuffer, LOOK, lambda buffer: None)
    put(queue, "finished")
    queue.kv_batch_put(keys=["u_0_0"], partition_id="train", tags=[{"status": "success", "global_steps": 1}])
    found, _ = buffer_of(kind).sample(1, "train", 1)
    assert found.keys == ["u_0_0"]
