"""The drift of a whole population: by how much the log-odds of all prompts have moved since they were last seen.

A prompt that comes again has mean reward y of n' rewards in the batch, and r of n before. If all log-odds have moved by
a step d, then y - r is about d m (1 - m), where m is the belief, with variance m (1 - m) / w and w = 1 / (1/n' + 1/n).
At least 16 such prompts, maybe of several batches, show a step

    d = sum w (y - r) / I,   I = sum w m (1 - m) + 1/4,   s^2 = [sum w^2 (y - r)^2 + (0.01 sum w)^2] / I^2.

1/4 is the precision of d ~ N(0, 2^2), and 0.01 a bias that all may share. The offset of all prompts is a random walk
whose steps have variance Q, so d is multiplied by Q / (Q + s^2). Q is the mean of d^2 - s^2 so far, weighted by 0.98
for each later step, and at least 0. A population that does not move is left where it is.

The level of new prompts is followed by the same formulas, with r the mean m of the prior and w = u of ``prior.py``.

Each prompt that comes again is compared with its own earlier rewards, and not with the belief. The belief is pulled to
the mean of all prompts, so batches sorted by difficulty would show steps that are none.

Reference: A. C. Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", 1989, section 4.1.
"""

from typing import NamedTuple

import numpy as np

from apportion.types import Floats

MEMORY = 0.98
LEAST_PROMPTS = 16
LARGEST_STEP = 2.0
BIAS = 0.01
FARTHEST = 500.0


def moved(p: Floats, shift: float | Floats) -> Floats:
    """Return probabilities ``p`` whose log-odds are raised by ``shift``, elementwise; 0 and 1 stay.

    >>> moved(np.array([0.0, 0.5, 1.0]), np.log(3.0)).round(6).tolist()
    [0.0, 0.75, 1.0]
    """
    half = 0.5 * np.clip(shift, -FARTHEST, FARTHEST)
    up, down = np.exp(half), np.exp(-half)  # both have similar sizes, so that neither overflows
    return p * up / (p * up + (1 - p) * down)


class Drift(NamedTuple):
    """The drift of a population: ``offset`` D, sums of d^2 - s^2 and of 1 over steps, and sums since the last step.

    The latter are those of 1, w (y - r), w^2 (y - r)^2, w, and w m (1 - m).
    """

    offset: float = 0.0
    excess: float = 0.0
    steps: float = 0.0
    prompts: float = 0.0
    score: float = 0.0
    squares: float = 0.0
    weight: float = 0.0
    information: float = 0.0

    def after(self, beliefs: Floats, differences: Floats, weights: Floats) -> "Drift":
        """Return the drift after a batch with m, y - r and w of its prompts, [P] each. D changes by at most 2."""
        scores = weights * differences
        new = len(scores), scores.sum(), scores @ scores, weights.sum(), weights @ (beliefs * (1 - beliefs))
        prompts, score, squares, weight, information = sums = (np.array(self[3:]) + new).tolist()
        if prompts < LEAST_PROMPTS:
            return Drift(*self[:3], *sums)
        information += 1 / LARGEST_STEP**2
        step = min(max(score / information, -LARGEST_STEP), LARGEST_STEP)
        error = (squares + (BIAS * weight) ** 2) / information**2
        excess, steps = MEMORY * self.excess + step**2 - error, MEMORY * self.steps + 1
        shrunk = step * excess / (excess + steps * error) if excess > 0 else 0.0
        return Drift(self.offset + shrunk, excess, steps)
