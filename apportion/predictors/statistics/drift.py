"""The drift of a whole population: by how much the log-odds of all prompts have moved, from prediction residuals."""

from dataclasses import dataclass

import numpy as np

from apportion.types import Floats

MEMORY = 0.98
LEAST_INFORMATION = 1e-9


def moved(p: Floats, shift: float) -> Floats:
    """Return probabilities ``p`` whose log-odds are raised by ``shift``, elementwise; 0 and 1 stay.

    >>> moved(np.array([0.0, 0.5, 1.0]), np.log(3.0)).round(6).tolist()
    [0.0, 0.75, 1.0]
    """
    up, down = np.exp(0.5 * shift), np.exp(-0.5 * shift)  # of similar size, so that neither overflows early
    return p * up / (p * up + (1 - p) * down)


@dataclass
class Drift:
    """The steps of a random walk that the log-odds of all prompts share.

    Each batch shows a step: the common shift that explains its residuals best, with a standard error from their spread.
    It is multiplied by q / (q + error^2), where q is the variance of true steps: the mean of step^2 - error^2 over the
    batches so far, weighted by 0.98 for each later one, and at least 0. So a population that does not move is left
    where it is, and what one batch leaves unexplained the next one shows again.

    Args:
        excess, batches: the discounted sums of step^2 - error^2 and of 1.
    """

    excess: float = 0.0
    batches: float = 0.0

    def observe(self, means: Floats, strengths: Floats, observed: Floats, trials: Floats) -> float:
        """Return the step of a batch, whose mean rewards [P] of ``trials`` [P] were believed Beta (mean, strength)."""
        weights = 1 / (1 / trials + 1 / (strengths + 1))
        information = float(weights @ (means * (1 - means)))
        if information < LEAST_INFORMATION:
            return 0.0
        residuals = weights * (observed - means)
        step, error = float(residuals.sum()) / information, float(residuals @ residuals) / information**2
        self.excess, self.batches = MEMORY * self.excess + step**2 - error, MEMORY * self.batches + 1
        variance = max(self.excess / self.batches, 0.0)
        return step * variance / (variance + error) if variance else 0.0
