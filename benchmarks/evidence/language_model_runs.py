"""The runs of SmolLM2 by their names, and what is read from them. Nothing is imported that trains.

Rates were swept on a seed of their own, for groups and for single rollouts. ``RATE`` is what they chose, and a test
fails if the sweep chooses another. Runs are kept one by one: a study that was stopped goes on.
"""

from collections.abc import Mapping

import numpy as np

SEEDS = tuple(range(5))
RATES, TUNING_SEED = (3e-6, 6e-6, 1e-5, 3e-5), 100
TUNED = {"uniform_8": ("uniform_8", "uniform_4"), "optimal": ("optimal",)}
"""Which rules take the rate that was best for a rule: groups and single rollouts have gradients of unlike noise."""
RATE = {"uniform_8": 6e-6, "optimal": 1e-5}
NAME, BEFORE, AFTER = "language_model", "language_model.norms_before", "language_model.norms_after"
CONTROL = "uniform_8"


def name_of(rule, rate, seed):
    """Return the name of a run's cell."""
    return f"{NAME}.{rule}-{rate:g}-{seed}"


def rate_of(rule):
    """Return the rate that a rule is trained with."""
    return next(RATE[leader] for leader, followers in TUNED.items() if rule in followers)


def area(values):
    """Return the mean held-out success over a run's evaluations after the start."""
    return float(np.mean(values["success"][1:]))


def at_seconds(values, seconds):
    """Return the held-out success of a run after so many processor seconds, on the line between evaluations.

    >>> at_seconds({"cpu_seconds": [0, 10, 20], "success": [0.2, 0.4, 0.6]}, 15)
    0.5
    """
    return float(np.interp(seconds, values["cpu_seconds"], values["success"]))


def runs_of(measured, rule):
    """Return a rule's runs, one for each seed."""
    return [measured[name_of(rule, rate_of(rule), seed)] for seed in SEEDS]


def swept(measured, leader):
    """Return the area of the sweep's run for each rate."""
    return {rate: area(measured[name_of(leader, rate, TUNING_SEED)]) for rate in RATES}


def checkpoints(measured):
    """Return what the norms say, by task and checkpoint."""
    trained = measured[AFTER]
    found = {f"{task}, before": each for task, each in measured[BEFORE].items()}
    return found | {f"{task}, trained": each for task, each in trained.items() if isinstance(each, Mapping)}


def p_value(value):
    """Return a p-value as text."""
    return "< 1e-15" if value < 1e-15 else f"{value:.2g}"
