"""vLLM's sleep mode in a batch of several rounds: TRL pushes the weights once, and not before every round.

With ``vllm_enable_sleep_mode`` TRL puts its colocated vLLM to sleep after each generation at level 2, which discards
the weights, and pushes all of them again before the next one. In a batch of several rounds vLLM sleeps at level 1
instead. That frees as much memory of the device, so that forward passes and reward models between two rounds have what
they have in TRL. The weights move to the memory of the host, and waking up brings them back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from accelerate.utils.memory import clear_device_cache

from apportion.trl.replaced import replaced

KEEPING_LEVEL = 1
"""vLLM's level of sleep that keeps the weights in the memory of the host."""


@dataclass
class SleepMode:
    """Keeps the weights of vLLM between the rounds of one batch, from the first push on, if it has ``several`` rounds.

    Under a rule with a single round vLLM sleeps at TRL's own level.
    """

    several: bool = False
    _pushed: bool = False

    @contextmanager
    def round(self, engine: Any) -> Iterator[None]:
        """Run a round of TRL's method, which generates with ``engine``, its ``VLLMGeneration``; None without vLLM.

        Versions of TRL that do not push the weights before each generation are left alone.
        """
        sleeps = getattr(engine, "mode", None) == "colocate" and engine.enable_sleep_mode
        if not self.several or not sleeps or not hasattr(engine, "_llm_weights_sleeping"):
            yield
            return
        push, sleep = engine.sync_weights, engine.llm.sleep

        def push_once() -> None:
            if self._pushed:
                clear_device_cache()  # as TRL does before it maps the weights
                engine.llm.wake_up(tags=["weights"])
                engine._llm_weights_sleeping = False
            else:
                push()
                self._pushed = True

        def sleep_with_weights(level: int = KEEPING_LEVEL, **settings: Any) -> None:
            sleep(level=KEEPING_LEVEL, **settings)

        with replaced(engine, sync_weights=push_once), replaced(engine.llm, sleep=sleep_with_weights):
            yield
