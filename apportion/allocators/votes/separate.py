"""Independent votes: waves of samples for each prompt until its own stopping rule stops."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from apportion.allocators.votes.base import ConsensusAllocator
from apportion.stopping import Wave, check_wave
from apportion.types import Batch, Counts, Plan


class SeparateVotes(ConsensusAllocator):
    """Samples each prompt until its rule stops. Prompts do not depend on each other."""

    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_wave(self.wave)

    @property
    @abstractmethod
    def wave(self) -> Wave:
        """Number of samples requested at a time; "free" is the minimum before the rule can stop."""

    def plan(self, batch: Batch) -> Plan:
        """Return the next wave of each prompt that the rule has not stopped."""
        codes = (self._codes(batch, q)[1] for q in range(len(batch.prompts)))
        return Plan(np.array([self._remembered("more", self._more, each) for each in codes], np.int64))

    def finished(self, batch: Batch, q: int) -> bool:
        """Return whether prompt ``q`` needs no more samples."""
        return self._enough(self.votes(batch, q)[1])

    def _more(self, votes: Counts) -> int:
        if self._enough(votes):
            return 0
        taken = len(votes)
        if self.wave == "free":
            return max(int(self.stopping.earliest(votes, self.max_samples)), self.min_samples - taken)
        return min(self.wave, self.max_samples - taken)

    def _enough(self, votes: Counts) -> bool:
        if not self.min_samples <= len(votes) < self.max_samples:
            return len(votes) >= self.max_samples
        return bool(self.stopping.stops_now(votes, self.max_samples))
