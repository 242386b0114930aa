"""The drift of a whole population: by how much the log-odds of all prompts have moved. And outages of the verifier."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from apportion.predictors.statistics.beta_binomial import log_likelihood
from apportion.types import Floats

MEMORY = 0.98
LEAST_PROMPTS = 16
LARGEST_STEP = 2.0
BIAS = 0.01
FIRST_MOVE, LARGEST_MOVE = 0.5, 6.0
LEFT_OUT, LONGEST = 3, 9
IMPLAUSIBLE, OWN_STRENGTH = 1e-6, 8.0
SMALLEST_MEAN = 1e-6


class Returns(NamedTuple):
    """P prompts of a batch that were seen before, each an array [P].

    ``means`` and ``strengths`` are of the beliefs before the batch. ``own`` are the prompts' own mean rewards so far,
    whose variance is that of one reward times ``spreads``. ``shares`` are the mean rewards of the batch, of ``trials``.
    """

    means: Floats
    strengths: Floats
    own: Floats
    spreads: Floats
    shares: Floats
    trials: Floats


def moved(p: Floats, shift: float) -> Floats:
    """Return probabilities ``p`` whose log-odds are raised by ``shift``, elementwise; 0 and 1 stay.

    >>> moved(np.array([0.0, 0.5, 1.0]), np.log(3.0)).round(6).tolist()
    [0.0, 0.75, 1.0]
    """
    up, down = np.exp(0.5 * shift), np.exp(-0.5 * shift)  # of similar size, so that neither overflows early
    return p * up / (p * up + (1 - p) * down)


@dataclass
class Drift:
    """The steps of a random walk that the log-odds of all prompts share, and the outages of what verifies them.

    *Steps.* At least 16 prompts that come again show a step together, over several batches if these are small. Each is
    compared with its own earlier rewards, and not with the belief. The belief is pulled to the mean of all prompts, so
    batches sorted by difficulty would show steps that are none. The step has a standard error from the spread of these
    differences, and from a bias of 0.01 that all may share. The step is multiplied by q / (q + error^2). q is the
    variance of true steps: the mean of step^2 - error^2 so far, weighted by 0.98 for each later one, and at least 0. So
    a population that does not move is left where it is.

    *Outages.* A batch is dead if all its rewards are the lowest, or all the highest, and if this had a chance below
    1e-6 under beliefs worth 8 rollouts at most. A dead batch does not show which prompts are hard, so the rewards of
    the first three count for none of them. The first one moves nothing. Each next one confirms: it moves all log-odds
    by at most 0.5, 1, 2, 2 and so on, and by 6 in all. The first batch that is not dead takes these moves back.

    One batch of any size and content moves the log-odds of a prompt that it does not contain by at most 2, or takes
    back an outage.

    Args:
        excess, batches: the discounted sums of step^2 - error^2 and of 1.
        outage: the number of dead batches until now, negative if their rewards were the lowest.
        fallen: by how much they have moved all log-odds.
        window: the prompts [P, 6] that have come again since the last step, as ``Returns``.
    """

    excess: float = 0.0
    batches: float = 0.0
    outage: float = 0.0
    fallen: float = 0.0
    window: Floats = field(default_factory=lambda: np.zeros((0, len(Returns._fields))))

    def observe(self, seen: Returns, dead: int = 0) -> tuple[float, bool]:
        """Return the shift of all log-odds that a batch calls for, and whether its rewards count for its prompts.

        ``dead`` is -1 if all rewards of the batch are the lowest, 1 if all are the highest, and else 0.
        """
        goes_on = dead * self.outage > 0
        if goes_on or (dead and _chance(seen, dead) < IMPLAUSIBLE):
            shift = self._confirmed(seen) if goes_on and len(seen.means) else 0.0
            self.outage = float(np.clip(self.outage + dead, -LONGEST, LONGEST)) if goes_on else float(dead)
            self.fallen += shift
            return shift, abs(self.outage) > LEFT_OUT
        back, self.outage, self.fallen = -self.fallen, 0.0, 0.0
        return back or self._step(seen), True

    def _confirmed(self, seen: Returns) -> float:
        """Return the shift by a dead batch that follows another one."""
        most = min(FIRST_MOVE * 2 ** (abs(self.outage) - 1), LARGEST_STEP)
        step = float(np.clip(_common_shift(seen)[0], -most, most))
        return float(np.clip(self.fallen + step, -LARGEST_MOVE, LARGEST_MOVE)) - self.fallen

    def _step(self, seen: Returns) -> float:
        self.window = np.concatenate([self.window, np.stack(seen, axis=1)])
        if len(self.window) < LEAST_PROMPTS:
            return 0.0
        (step, error), self.window = _common_shift(Returns(*self.window.T)), self.window[:0]
        self.excess, self.batches = MEMORY * self.excess + step**2 - error, MEMORY * self.batches + 1
        variance = max(self.excess / self.batches, 0.0)
        return step * variance / (variance + error) if variance else 0.0


def _common_shift(seen: Returns) -> tuple[float, float]:
    """Return the common shift of the log-odds that explains the differences best, under N(0, 2^2), and its variance."""
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import

    weights = 1 / (1 / seen.trials + seen.spreads)
    differences = weights * (seen.shares - seen.own)
    means = np.clip(seen.means, SMALLEST_MEAN, 1 - SMALLEST_MEAN)

    def left(step: float) -> float:
        return float(differences.sum() - weights @ (moved(means, step) - means)) - step / LARGEST_STEP**2

    edge = float(np.copysign(LARGEST_STEP, left(0.0)))  # the shift lies between 0 and this, because left decreases
    step = edge if left(edge) * edge >= 0 else float(brentq(left, 0.0, edge))
    information = max(float(weights @ (p * (1 - p))) for p in (means, moved(means, step))) + 1 / LARGEST_STEP**2
    return step, float(differences @ differences + (BIAS * weights.sum()) ** 2) / information**2


def _chance(seen: Returns, dead: int) -> float:
    """Return the probability that all rewards are the lowest (``dead`` -1) or the highest (1)."""
    strengths = np.minimum(seen.strengths, OWN_STRENGTH)
    means = np.clip(seen.means, SMALLEST_MEAN, 1 - SMALLEST_MEAN)
    return float(np.exp(log_likelihood(means, strengths, seen.trials * (dead > 0), seen.trials).sum()))
