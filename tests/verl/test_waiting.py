"""The coordinator's error ends the trainer's wait in verl's replay buffer."""

import threading
import time

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from apportion.verl.waiting import check_while_waiting


@pytest.fixture
def stop():
    """Return an object whose ``error`` ends the waits of this process."""

    class Stop:
        error = None

        def check(self):
            if self.error:
                raise RuntimeError(self.error)

    stop = Stop()
    check_while_waiting(stop.check)
    yield stop
    check_while_waiting(lambda: None)


def buffer_of(kind):
    return kind("sync", OmegaConf.create(), None, "drop", OmegaConf.create(), poll_interval=0.05)


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
def test_an_error_ends_the_wait_for_prompts_that_do_not_come(queue, stop, kind):
    queue.kv_batch_put(
        keys=["u"], partition_id="train", tags=[{"is_prompt": True, "status": "running", "global_steps": 1}]
    )
    threading.Timer(0.5, lambda: setattr(stop, "error", "allocation failed at step 1: no belief")).start()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="allocation failed at step 1: no belief"):
        buffer_of(kind).sample(1, "train", 1)
    assert 0.5 <= time.monotonic() - began < 10


def test_finished_prompts_are_found_as_before(queue, stop):
    queue.kv_batch_put(
        keys=["u"], partition_id="train", tags=[{"is_prompt": True, "status": "finished", "global_steps": 1}]
    )
    queue.kv_batch_put(keys=["u_0_0"], partition_id="train", tags=[{"status": "success"}])
    found, _ = buffer_of(ReplayBuffer).sample(1, "train", 1)
    assert found.keys == ["u_0_0"]
