"""The mean of prompts that were never seen. A batch of them is one draw of it, because data sets can be sorted.

Sorted by difficulty or by source, the next fresh prompts are like those of the latest batch, and not like the mean of
all so far. Reference: A. C. Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter" (1989), section
4.1: the level is a random walk, and each batch shows it with noise.
"""

from dataclasses import dataclass

from apportion.types import Floats

MEAN_VARIANCE = 1 / 12
"""The variance of the level before the first batch, as of a mean that is uniform between 0 and 1."""
MEMORY = 0.98
SIGNIFICANT = 4.0


@dataclass
class Level:
    """The level of fresh prompts, in units of the range of rewards.

    The variance of its steps is the mean of what the squared errors of its forecasts have beyond their variance,
    weighted by 0.98 for each later batch. It is 0 unless it is 4 standard errors above 0. Then ``at`` is the level.
    Otherwise it is the mean of all prompts, drawn to 1/2 as long as few batches show that they are alike. A batch of
    which all rewards are the lowest, or all are the highest, shows no step, because its verifier may be out.

    Args:
        mean, variance: the level and its variance.
        excess, error, batches: discounted sums of the excess, of the squared standard errors, and of 1.
        seen: the number of batches with fresh prompts.
    """

    mean: float = 0.5
    variance: float = MEAN_VARIANCE
    excess: float = 0.0
    error: float = 0.0
    batches: float = 0.0
    seen: float = 0.0

    @property
    def moves(self) -> float:
        """The variance of a step from one batch to the next; 0 if batches differ by chance alone."""
        return self.excess / self.batches if self.excess > SIGNIFICANT * self.error**0.5 else 0.0

    def at(self, mean: float) -> float:
        """Return the mean of fresh prompts, if that of all prompts is ``mean``."""
        if self.moves:
            return self.mean
        return 0.5 + (mean - 0.5) * self.seen**2 / (self.seen**2 + 1)

    def observe(self, means: Floats, noise: float) -> None:
        """Follow the ``means`` [P] of the fresh prompts of one batch. ``noise`` is the variance of one of them."""
        self.seen += 1
        if (means == 0).all() or (means == 1).all():
            return
        missed, noise = float(means.mean()) - self.mean, noise / len(means)
        if self.variance < MEAN_VARIANCE:  # the first batch has no forecast
            expected = self.variance + noise
            self.excess = MEMORY * self.excess + missed**2 - expected
            self.error = MEMORY**2 * self.error + 2 * expected**2
            self.batches = MEMORY * self.batches + 1
        before = self.variance + self.moves
        gain = before / (before + noise)
        self.mean, self.variance = self.mean + gain * missed, (1 - gain) * before

    def rescale(self, start: float, ratio: float) -> None:
        """Put the level into new units: ``start`` + ``ratio`` x the old ones."""
        self.mean = start + ratio * self.mean
        self.variance, self.excess, self.error = (
            self.variance * ratio**2,
            self.excess * ratio**2,
            self.error * ratio**4,
        )
