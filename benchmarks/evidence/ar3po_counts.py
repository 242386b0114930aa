"""AR3PO's counts without a new run: exactly along the recorded run, in closed form, and the sums of the paper."""

from math import comb

import numpy as np
from scipy import optimize, special

from apportion.allocators import AR3PO
from apportion.evaluation import bootstrap_interval
from benchmarks.bias_exact import SUCCESS, exact, leaves
from benchmarks.expected import near_truth
from benchmarks.real_run_data import grpo_run

GROUP, STAGES, EACH = 8, 2, 4
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8)
PAPER_ROLLOUTS, PAPER_WITHOUT = 5.7, 0.30


def recorded():
    """Return what AR3PO would have asked for in the recorded GRPO run, had it seen the recorded groups of 8.

    A group has c correct of 8, in no particular order. So the first m of them have none with probability C(8 - c, m) /
    C(8, m), and the expected counts need no estimate of the success rate. Intervals are of 1,000 draws of the prompts.
    """
    found = grpo_run()
    right = found.rewards.sum(axis=2).astype(np.int64)
    counts, without = _expected(right, STAGES, EACH), right == 0
    seen = np.cumsum(~without, axis=1) > 0
    known = np.concatenate([np.zeros((len(right), 1), bool), seen[:, :-1]], axis=1)  # correct at an earlier visit
    band = np.stack([near_truth(found.shares, v, without=True) for v in range(right.shape[1])], axis=1)
    band = np.clip(np.searchsorted(BANDS, band, side="right") - 1, 0, len(BANDS) - 1)
    return {
        "prompts": len(right),
        "rollouts": {"2x4": _interval(counts)},
        "rollouts_by_band": [float(counts[band == b].mean()) for b in range(len(BANDS))],
        "without": _interval(without),
        "after": _interval(without & ~known),
        "mixed": {"2x4": float(_mixed(right, EACH).mean())},
        "uniform": {
            str(n): {"hits": float((1 - _none(right, n)).mean()), "mixed": float(_mixed_even(right, n).mean())}
            for n in range(2, GROUP + 1)
        },
        "hits": float((right > 0).mean()),
    }


def _expected(right, stages, each):
    """Return the expected rollouts of groups with ``right`` correct of 8."""
    return np.asarray(sum(each * _none(right, each * stage) for stage in range(stages)), np.float64)


def _none(right, first):
    """Return the probability that the first so many of 8 have none of the ``right`` correct ones."""
    table = np.array([comb(GROUP - c, first) / comb(GROUP, first) for c in range(GROUP + 1)])
    return np.asarray(table[right])


def _mixed(right, each):
    """Return the probability that a group ends with both outcomes: some correct, and not all of the first stage."""
    table = np.array([float(c > 0) - comb(c, each) / comb(GROUP, each) for c in range(GROUP + 1)])
    return np.asarray(table[right])


def _mixed_even(right, rollouts):
    """Return the probability that so many of 8 have both outcomes."""
    return 1 - _none(right, rollouts) - _none(GROUP - right, rollouts)


def _interval(visits):
    """Return the mean of ``visits`` [P, V], and the ends of its 95% bootstrap interval over prompts."""
    by_prompt = visits.mean(axis=1)
    return [float(by_prompt.mean()), *bootstrap_interval(by_prompt, resamples=1000)]


def arithmetic():
    """Return what the paper's own figures imply for each other, if success rates follow a Beta distribution.

    5.7 rollouts a prompt say that the first stage fails with probability .425. The Beta with that and with a share of
    .30 without a correct response among 8 gives the rollouts of the band from 0 to .2.
    """
    fails = PAPER_ROLLOUTS / 4 - 1

    def error(logs):
        alpha, beta = np.exp(logs)
        return np.array([_none_of(alpha, beta, 4) - fails, _none_of(alpha, beta, 8) - PAPER_WITHOUT])

    alpha, beta = np.exp(optimize.root(error, np.log([0.5, 0.5])).x)
    below = special.betainc(alpha, beta + 4, 0.2) / special.betainc(alpha, beta, 0.2)
    return {"rollouts_low": float(4 + 4 * _none_of(alpha, beta, 4) * below)}


def _none_of(alpha, beta, rollouts):
    """Return E[(1 - p)^rollouts] for p of Beta(alpha, beta)."""
    return float(np.exp(special.betaln(alpha, beta + rollouts) - special.betaln(alpha, beta)))


def stages():
    """Return the mean of the gradient over its true value, by success rate, with two stages of four."""
    found = exact(leaves(AR3PO(STAGES, EACH, reuse="none")), "rloo")
    return {"at": SUCCESS.tolist(), "2x4": {"ratio": found.ratio.tolist()}}
