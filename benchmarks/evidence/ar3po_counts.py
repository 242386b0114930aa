"""AR3PO's counts without a new run: exactly along the recorded run, in closed form, and the sums of the paper."""

from __future__ import annotations

from itertools import pairwise
from math import comb

import numpy as np
from scipy import optimize, special

from apportion.allocators import AR3PO, Uniform
from apportion.replay.expected import near_truth
from apportion.types import Counts, Floats
from benchmarks.bias_exact import SUCCESS, exact, expected_rollouts, leaves
from benchmarks.evidence.claim import Values
from benchmarks.real_run_data import grpo_run

GROUP = 8
STAGES = {"2x4": (2, 4), "4x2": (4, 2), "8x1": (8, 1), "1x8": (1, 8)}
"""Stages and rollouts in each, with the same maximum of 8."""
EPOCHS = (0, 1, 2, 4, 8, 16, 44)
"""Edges of the parts that the visits of the recorded run are averaged in."""
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8)
DRAWS = 1000
PAPER_ROLLOUTS, PAPER_WITHOUT = 5.7, 0.30


def recorded() -> Values:
    """Return what AR3PO would have asked for in the recorded GRPO run, had it seen the recorded groups of 8.

    A group has c correct of 8, in no particular order. So the first m of them have none with probability C(8 - c, m) /
    C(8, m), and the expected counts need no estimate of the success rate. Intervals are of 1,000 draws of the prompts.
    """
    found = grpo_run()
    right = found.rewards.sum(axis=2).astype(np.int64)
    parts = [slice(low, high) for low, high in pairwise(EPOCHS)]
    draws = np.random.default_rng(0).integers(len(right), size=(DRAWS, len(right)))
    counts = {name: _expected(right, *own) for name, own in STAGES.items()}
    mixed = {name: _mixed(right, k) for name, (_, k) in STAGES.items()}
    without, seen = right == 0, np.cumsum(right > 0, axis=1) > 0
    known = np.concatenate([np.zeros((len(right), 1), bool), seen[:, :-1]], axis=1)  # correct at an earlier visit
    rescued = without & known
    band = np.stack([near_truth(found.shares, v, without=True) for v in range(right.shape[1])], axis=1)
    band = np.clip(np.searchsorted(BANDS, band, side="right") - 1, 0, len(BANDS) - 1)
    return {
        "prompts": len(right),
        "visits": right.shape[1],
        "rollouts": {name: _interval(each.mean(axis=1), draws) for name, each in counts.items()},
        "rollouts_by_part": [float(counts["2x4"][:, part].mean()) for part in parts],
        "rollouts_by_band": [float(counts["2x4"][band == b].mean()) for b in range(len(BANDS))],
        "groups_by_band": [float((band == b).mean()) for b in range(len(BANDS))],
        "without": _interval(without.mean(axis=1), draws),
        "after": _interval((without & ~known).mean(axis=1), draws),
        "without_by_part": [float(without[:, part].mean()) for part in parts],
        "after_by_part": [float((without & ~known)[:, part].mean()) for part in parts],
        "hits_by_part": [float(rescued[:, part].sum() / without[:, part].sum()) for part in parts],
        "with_response_by_part": [float(known[:, part].mean()) for part in parts],
        "mixed": {name: float(each.mean()) for name, each in mixed.items()},
        "uniform": {
            str(n): {"hits": float((1 - _none(right, n)).mean()), "mixed": float(_mixed_even(right, n).mean())}
            for n in range(2, GROUP + 1)
        },
        "hits": float((right > 0).mean()),
        "mixed_per_100": {name: float(100 * each.mean() / counts[name].mean()) for name, each in mixed.items()},
        "hits_per_100": {name: float(100 * (right > 0).mean() / each.mean()) for name, each in counts.items()},
    }


def _expected(right: Counts, stages: int, each: int) -> Floats:
    """Return the expected rollouts of groups with ``right`` correct of 8."""
    return np.asarray(sum(each * _none(right, each * stage) for stage in range(stages)), np.float64)


def _none(right: Counts, first: int) -> Floats:
    """Return the probability that the first so many of 8 have none of the ``right`` correct ones."""
    table = np.array([comb(GROUP - c, first) / comb(GROUP, first) for c in range(GROUP + 1)])
    return np.asarray(table[right])


def _mixed(right: Counts, each: int) -> Floats:
    """Return the probability that a group ends with both outcomes: some correct, and not all of the first stage."""
    table = np.array([float(c > 0) - comb(c, each) / comb(GROUP, each) for c in range(GROUP + 1)])
    return np.asarray(table[right])


def _mixed_even(right: Counts, rollouts: int) -> Floats:
    """Return the probability that so many of 8 have both outcomes."""
    return 1 - _none(right, rollouts) - _none(GROUP - right, rollouts)


def _interval(by_prompt: Floats, draws: Counts) -> list[float]:
    """Return the mean over prompts, and the ends of its 95% bootstrap interval."""
    low, high = np.quantile(by_prompt[draws].mean(axis=1), [0.025, 0.975])
    return [float(by_prompt.mean()), float(low), float(high)]


def arithmetic() -> Values:
    """Return what the paper's own figures imply for each other, if success rates follow a Beta distribution.

    5.7 rollouts a prompt say that the first stage fails with probability .425. The Beta with that and with a share of
    .30 without a correct response among 8 gives the rollouts of the band from 0 to .2. The code's counts are compared
    with the closed form at some rates.
    """
    fails = PAPER_ROLLOUTS / 4 - 1

    def error(logs: Floats) -> Floats:
        alpha, beta = np.exp(logs)
        return np.array([_none_of(alpha, beta, 4) - fails, _none_of(alpha, beta, 8) - PAPER_WITHOUT])

    solved = optimize.root(error, np.log([0.5, 0.5]))
    alpha, beta = np.exp(solved.x)
    low = special.betainc(alpha, beta, 0.2)
    missed = _none_of(alpha, beta, 4) * special.betainc(alpha, beta + 4, 0.2) / low
    high = 1 - special.betainc(alpha, beta, 0.8)
    missed_high = _none_of(alpha, beta, 4) * (1 - special.betainc(alpha, beta + 4, 0.8)) / high
    formula = 4 + 4 * (1 - SUCCESS) ** 4
    return {
        "solved": bool(solved.success),
        "alpha": float(alpha),
        "beta": float(beta),
        "mean": float(alpha / (alpha + beta)),
        "share_low": float(low),
        "rollouts_low": float(4 + 4 * missed),
        "rollouts_high": float(4 + 4 * missed_high),
        "least_share_without": float(fails**2),
        "code_minus_formula": float(np.abs(expected_rollouts(leaves(AR3PO(reuse="none"))) - formula).max()),
        "at": SUCCESS.tolist(),
        "formula": formula.tolist(),
    }


def _none_of(alpha: float, beta: float, rollouts: int) -> float:
    """Return E[(1 - p)^rollouts] for p of Beta(alpha, beta)."""
    return float(np.exp(special.betaln(alpha, beta + rollouts) - special.betaln(alpha, beta)))


def stages() -> Values:
    """Return rollouts, and the mean and noise of the gradient over its true value, by success rate, for each shape."""
    made = {
        name: leaves(Uniform(GROUP) if own == (1, GROUP) else AR3PO(*own, reuse="none")) for name, own in STAGES.items()
    }
    found = {
        name: {
            "rollouts": expected_rollouts(own).tolist(),
            "ratio": exact(own, "rloo").ratio.tolist(),
            "noise": exact(own, "rloo").noise.tolist(),
        }
        for name, own in made.items()
    }
    return {"at": SUCCESS.tolist(), **found}
