"""Communication between the ranks of a run: rank 0 decides, and the others follow."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

T = TypeVar("T")
HEARTBEAT_SECONDS = 20.0
"""Seconds between heartbeats: far below the timeouts of process groups, which are at least 10 minutes by default."""


class MainRankError(RuntimeError):
    """Rank 0 raised an error. Its message is quoted here; the traceback is in the output of rank 0."""


@dataclass(frozen=True)
class StillWorking:
    """Rank 0 tells the others that it has not finished, see ``Ranks.run_on_main``."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of ``accelerator``. A single rank communicates with nobody."""

    accelerator: Accelerator

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.accelerator.num_processes

    @property
    def rank(self) -> int:
        """The index of this rank."""
        return self.accelerator.process_index

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which holds the allocator."""
        return self.rank == 0

    def all_gather(self, items: list[T]) -> list[T]:
        """Return the ``items`` of all ranks in rank order. All ranks must call it."""
        return list(gather_object(items)) if self.size > 1 else items

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Call ``work`` on rank 0 and return its result on all ranks.

        The others wait as long as it takes: heartbeats keep the process group from timing out. ``work`` must not
        communicate with them. A ValueError is raised on all ranks. After another error of rank 0 the others raise
        MainRankError.
        """
        outcome: Any = StillWorking()
        if self.is_main:
            try:
                with self._heartbeats():
                    outcome = work()
            except ValueError as error:
                outcome = error
            except Exception as error:
                self.broadcast(MainRankError(f"rank 0 failed: {type(error).__name__}: {error}"))
                raise
            self.broadcast(outcome)
        while isinstance(outcome, StillWorking):
            outcome = self.broadcast()
        if isinstance(outcome, ValueError | MainRankError):
            raise outcome
        return outcome

    def broadcast(self, message: T | None = None) -> T:
        """Return the ``message`` of rank 0. All ranks must call it."""
        box: list[Any] = [message]
        if self.size > 1:
            broadcast_object_list(box, from_process=0)
        return box[0]

    @contextmanager
    def _heartbeats(self) -> Iterator[None]:
        """Broadcast ``StillWorking`` from a thread, every 20 seconds within the block."""
        if self.size == 1:
            yield
            return
        finished = threading.Event()

        def beat() -> None:
            if self.accelerator.device.type == "cuda":
                torch.cuda.set_device(self.accelerator.device)  # each thread has a current device of its own
            while not finished.wait(HEARTBEAT_SECONDS):
                self.broadcast(StillWorking())

        thread = threading.Thread(target=beat, name="heartbeats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()
