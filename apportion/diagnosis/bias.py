"""What is known about the bias of the rule that ran: the table of docs/allocators.md, as data.

The numbers are expected estimate over true gradient under RLOO with weight 1 for every prompt. They are those of
benchmarks/results/bias.md, at which a test compares them, and not measured on the run. Rules whose
counts are fixed by earlier batches have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.untrusted import shown

RATES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
RATIOS: dict[str, tuple[float, ...]] = {
    "hora": (1.05, 1.04, 1.04, 1.03, 1.02, 1.00, 0.98, 0.96, 0.96, 0.96, 0.97),
    "ar3po": (1.47, 1.42, 1.35, 1.23, 1.15, 1.05, 1.01, 1.00, 1.00, 1.00, 1.00),
    "ar3po, reuse": (1.56, 1.52, 1.42, 1.26, 1.16, 1.05, 1.01, 1.01, 1.00, 1.00, 0.99),
    "ar3po, reuse in the loss": (6.87, 3.17, 1.95, 1.37, 1.18, 1.05, 1.01, 1.01, 1.00, 1.00, 0.99),
    "reinforce_ada, positive": (6.33, 4.64, 3.10, 1.87, 1.40, 1.11, 1.31, 1.54, 1.81, 1.92, 1.97),
    "reinforce_ada, balanced": (7.46, 6.15, 4.21, 2.24, 1.52, 1.14, 1.52, 2.24, 4.21, 6.15, 7.46),
    "reinforce_ada, all in the loss": (1.18, 1.29, 1.29, 1.17, 1.09, 1.03, 1.09, 1.17, 1.29, 1.29, 1.18),
    "dapo": (1.34,) * 11,
}
COSINES = {
    "ar3po": 0.996,
    "ar3po, reuse": 0.995,
    "ar3po, reuse in the loss": 0.953,
    "reinforce_ada, positive": 0.938,
    "reinforce_ada, balanced": 0.874,
    "reinforce_ada, all in the loss": 0.998,
}
"""Cosine of the expected batch gradient and the truth, where it is not 1."""
REMEDIES = {
    "hora": "with `sequential` or `reinforce` and weights by rollout no bias is measurable",
    "ar3po": "with `sequential` and weights by rollout a prompt counts E[n] times, as the rule intends",
    "ar3po, reuse": "with `sequential` and weights by rollout a prompt counts E[n] times, as the rule intends",
    "ar3po, reuse in the loss": "leave reused rollouts out of the loss",
    "reinforce_ada, positive": "keep every rollout in the loss, with `sequential` and weights by rollout",
    "reinforce_ada, balanced": "keep every rollout in the loss, with `sequential` and weights by rollout",
    "reinforce_ada, all in the loss": "with `sequential` and weights by rollout a prompt counts E[n] times",
    "dapo": "only the scale changes; times (B - 1) / (D - 1) it is unbiased",
}
FIXED = ("uniform", "vip", "neyman", "inverse_accuracy", "inverse_variance")
"""Rules whose counts are fixed by earlier batches, so that RLOO is unbiased under them."""
UNBIASED = (1.0,) * len(RATES)


@dataclass(frozen=True)
class RateBias:
    """The bias at one success rate, and the share of the run's prompts whose success rate is nearest to it.

    The share is nan if rewards are not 0 or 1.
    """

    rate: float
    ratio: float
    share: float


@dataclass(frozen=True)
class RuleBias:
    """What is known about the bias of a rule under RLOO, for one of its settings.

    Args:
        rule: the rule and its setting.
        fixed: whether its counts are fixed by earlier batches, so that it has no bias; ``ratio`` then is 1.
        rates: by success rate.
        cosine: of the expected batch gradient and the truth, over prompts of all these rates.
        remedy: what corrects the bias; "" if there is none.
    """

    rule: str
    fixed: bool
    rates: tuple[RateBias, ...]
    cosine: float
    remedy: str


def bias_of(record: RunRecord, rule: str) -> tuple[RuleBias, ...]:
    """Return what the bias table says of ``rule``, for each of its settings that were measured.

    Raises ValueError for a rule that is not in the table.
    """
    measured = (*FIXED, *RATIOS)
    found = [name for name in measured if rule in (name, name.split(",")[0])]
    if not found:
        known = ", ".join(dict.fromkeys(name.split(",")[0] for name in measured))
        raise ValueError(f"rule must be one whose bias was measured ({known}), got {shown(rule)}; leave it out")
    trials = np.bincount(record.prompt, record.trials, len(record.ids))
    rate = np.bincount(record.prompt, record.totals, len(record.ids))[trials > 0] / trials[trials > 0]
    nearest = np.argmin(np.abs(rate[:, None] - RATES), axis=1)
    shares = np.bincount(nearest, minlength=len(RATES)) / (len(rate) if record.binary and len(rate) else np.nan)
    return tuple(
        RuleBias(
            rule=name,
            fixed=name in FIXED,
            rates=tuple(map(RateBias, RATES, RATIOS.get(name, UNBIASED), shares.tolist())),
            cosine=COSINES.get(name, 1.0),
            remedy=REMEDIES.get(name, ""),
        )
        for name in found
    )
