"""Early-stopping self-consistency (ESC): stop after a window of samples with the same answer.

Samples are taken in consecutive windows of ``window`` samples that do not overlap. Sampling ends with the first window
whose answers are all the same. The answer is the majority of all samples so far.

Reference: Li et al. 2024, "Escape Sky-high Cost: Early-stopping Self-Consistency", arXiv 2401.10480. Notes:

- The window is 5 in the paper's Figure 1 and in the authors' scripts, for 40 samples at most and for 64.
- The authors' scripts return the answer of the unanimous window. The majority of all samples differs from it only if
  earlier windows had outvoted it, and is what the full vote builds on.
- Here a window with a sample without an answer is not unanimous. The paper does not say.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.checks import check_numbers
from apportion.stopping.base import Rule
from apportion.types import Counts, Mask


@dataclass(frozen=True)
class ESC(Rule):
    """Stops at the end of a window of ``window`` samples that all have the same answer.

    Args:
        window: the number of samples of a window.

    >>> from apportion.stopping import decide
    >>> decide(["7", "7", "9", "7", "7", "7", "7", "7"], rule="esc", max_samples=8, window=4).samples
    8
    """

    window: int = 5

    name: ClassVar[str] = "esc"
    _bounded: ClassVar[str | None] = "window"

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.window < 2:
            raise ValueError(f"window must be at least 2, got {self.window}; one sample always agrees with itself")

    def stops(self, votes: Counts, max_samples: int) -> Mask:
        """Return True from the end of the first window in which one answer gained a vote with every sample, [..., T].

        It stays True, so that a wave that the window does not divide stops at its end.
        """
        ends = votes[..., self.window - 1 :: self.window, :]
        gained = np.diff(ends, axis=-2, prepend=0)
        stops = np.zeros(votes.shape[:-1], bool)
        stops[..., self.window - 1 :: self.window] = (gained == self.window).any(axis=-1)
        return np.logical_or.accumulate(stops, axis=-1)

    def earliest(self, votes: Counts, max_samples: int) -> Counts:
        """Return the samples to the end of this window, or of the next one if this one is no longer unanimous."""
        taken = votes.shape[-2]
        inside = taken % self.window
        new = votes[..., -1:, :].sum(axis=-2)
        if taken > inside:
            new = new - votes[..., taken - inside - 1, :]
        lost = (new != inside).all(axis=-1) & (inside > 0)
        return np.minimum(self.window * (1 + lost) - inside, max_samples - taken)
