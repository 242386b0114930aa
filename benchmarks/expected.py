"""What an allocation would have got in expectation, at success rates that are taken for the truth.

The rate of a prompt at a visit is not known. It is estimated by the mean of its groups in a window of visits, the
visit itself included, so these numbers describe a recorded run and decide nothing.
"""

import numpy as np

from apportion.allocators.hora import maximise_hits
from apportion.allocators.vip import gradient_variance, minimise_noise
from apportion.replay.population import WINDOW

SIZE, LOW, HIGH, HORA_HIGH = 8, 3, 32, 64


def near_truth(shares, visit, without=False):
    """Return mean shares [Q] of up to ten visits around ``visit``, from ``shares`` [Q, V].

    ``without`` leaves that visit out.

    >>> near_truth(np.arange(12.0)[None], 6).tolist()
    [5.5]
    """
    window = np.arange(max(0, visit - WINDOW), min(shares.shape[1], visit + WINDOW))
    return np.asarray(shares[:, window[window != visit] if without else window].mean(axis=1))


def vip(variance, truth, size=SIZE, low=LOW, high=HIGH):
    """Return RLOO's variance at rates ``truth`` [P] under VIP's counts for ``variance`` [P], and under uniform counts.

    VIP splits ``size`` rollouts a prompt, ``low`` to ``high`` for each, by a believed variance of the reward.

    >>> vip(np.array([0.25, 0.0]), np.array([0.5, 0.0]), size=8)
    (0.08333333333333333, 0.14285714285714285)
    """
    return variances(truth, minimise_noise(variance, size * len(truth), "rloo", low, high), size)


def variances(truth, counts, size=SIZE):
    """Return RLOO's variance at rates ``truth`` [P] under ``counts`` [P], and under ``size`` each."""
    uniform = np.full(len(truth), size)
    return float(gradient_variance(truth, counts).sum()), float(gradient_variance(truth, uniform).sum())


def hora(belief, right, truth, size=SIZE, high=HORA_HIGH):
    """Return the expected hits of ``size`` extra rollouts a prompt at rates ``truth`` [P]: by HORA, and uniform.

    A hit is a prompt with a right answer among its extra rollouts. HORA places them after a group of ``size`` of which
    ``right`` [P] were right, at most ``high`` a prompt in all.
    """
    first = np.full(len(truth), size)
    counts = maximise_hits(belief.condition(right, first), 2 * size * len(truth), first, high)
    hits = [float((1 - (1 - truth) ** extra).sum()) for extra in (counts - first, first)]
    return hits[0], hits[1]
