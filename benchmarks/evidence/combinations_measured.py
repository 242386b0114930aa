"""Measures decisions in the lab that no paper combined: the optimal baseline in groups, unbiased AR3PO.

The learning rate is the one that the sweep of benchmarks/methods.py chose for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.evidence.learning import FIVE, HARD, Settings, learn_seeds

UNIFORM = {"name": "uniform", "rollouts_per_prompt": 8}
STAGES = {"name": "ar3po", "reuse": "none"}
ARMS: Mapping[str, tuple[Settings, Settings]] = {
    "optimal": (UNIFORM, {"estimator": "reinforce", "baseline": "optimal"}),
    # A rule that stops by outcomes, under an estimator that is biased by it and one that is not.
    "ar3po_by_rloo": (STAGES, {}),
    "ar3po_by_sequential": (STAGES, {"estimator": "sequential"}),
}


def arm(name, **changed):
    """Return what every seed of an arm reached."""
    rule, settings = ARMS[name]
    return learn_seeds(rule, {**HARD, **settings, **changed}, FIVE)
