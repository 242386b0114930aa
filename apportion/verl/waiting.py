"""End the trainer's wait for finished prompts if they cannot come.

verl's trainer waits in its replay buffer, which looks every few seconds for finished prompts. Its method that looks is
replaced in the trainer's process by one that first asks whether the run can continue. So an error of the allocator is
what ends the run, and not what verl finds missing afterwards.
"""

from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class Looking:
    """verl's method that looks for finished prompts, after ``check``, which raises if none can come."""

    def __init__(self, look: Callable[[Any], None]) -> None:
        self._look = look
        self.check: Callable[[], None] = lambda: None

    def __get__(self, buffer: Any, owner: type) -> Callable[..., None]:
        if buffer is None:
            return self._look

        def look() -> None:
            self.check()
            self._look(buffer)

        return look


looking = Looking(ReplayBuffer._sync_metadata_from_transfer_queue)


def check_while_waiting(check: Callable[[], None]) -> None:
    """Have verl's trainer in this process call ``check`` while it waits. It replaces that of an earlier call."""
    looking.check = check
    ReplayBuffer._sync_metadata_from_transfer_queue = looking
