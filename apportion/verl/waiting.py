"""End the trainer's wait for finished prompts if they cannot come.

verl's trainer waits in its replay buffer, which looks every few seconds for finished prompts. Its method that looks is
replaced in the trainer's process by one that first asks whether the run can continue. So an error of the allocator is
what ends the run, and not what verl finds missing afterwards.
"""

from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from apportion.verl.seam import replace


def check_while_waiting(check: Callable[[], None]) -> None:
    """Have verl's trainer in this process call ``check`` while it waits. It replaces that of an earlier call."""

    def checked(look: Callable[[Any], None]) -> Callable[[Any], None]:
        def check_and_look(buffer: Any) -> None:
            check()
            look(buffer)

        return check_and_look

    replace(ReplayBuffer, "_sync_metadata_from_transfer_queue", checked)
