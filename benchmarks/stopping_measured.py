"""Run every stopping rule on the same streams, and compute means with intervals over questions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from apportion.stopping import RULES, Wave, decide, make_rule
from apportion.types import Floats

SEED = 0
RESAMPLES = 2000
WAVES: tuple[Wave, ...] = (1, "free")

GRID: dict[str, dict[str, dict[str, Any]]] = {
    "fixed": {"all": {}} | {f"n = {n}": {"samples": n} for n in (5, 10, 20, 40)},
    "optpo": {
        f"N = {least}{how}": {"min_samples": least, **more}
        for how, more in (("", {}), (", m = 4", {"choices": 4}))
        for least in (8, 16, 32)
    }
    | {
        "N = 16, from N": {"min_samples": 16, "count_from": "min_samples"},
        "N = 16, literal": {"min_samples": 16, "low_accuracy": "literal"},
    },
    "adaptive_consistency_beta": {f"confidence = {c}": {"confidence": c} for c in (0.9, 0.95, 0.99)},
    "adaptive_consistency_dirichlet": {f"confidence = {c}": {"confidence": c} for c in (0.9, 0.95, 0.99)},
    "esc": {f"window = {window}": {"window": window} for window in (4, 5, 8, 10)},
    "p_value": {f"p = {p}": {"threshold": p} for p in (0.05, 0.01, 0.001)},
    "posterior_predictive": {f"eps = {eps}": {"eps": eps} for eps in (0.003, 0.01, 0.03, 0.1)},
    "calibrated": {f"eps = {eps}": {"eps": eps} for eps in (0.003, 0.01, 0.03, 0.1)},
}
"""Settings by rule. A rule that is not here runs with its defaults."""


def settings():
    """Return every registered rule with each of its settings, by a name to show."""
    return {
        f"{name}, {text}" if text else name: make_rule(name, **chosen)
        for name in RULES
        for text, chosen in GRID.get(name, {"": {}}).items()
    }


def is_default(rule):
    """Return whether ``rule`` has its default settings."""
    return rule == make_rule(rule.name)


@dataclass(frozen=True)
class Key:
    """One measurement: a setting by its name, asked after each ``wave``, curtailed or not."""

    setting: str
    wave: Wave = 1
    curtail: bool = False


@dataclass(frozen=True)
class Measured:
    """The results of a rule on a data set: means [Q] over the orders of each question."""

    samples: Floats
    waves: Floats
    agreement: Floats


Cells = dict[Key, dict[str, Measured]]
"""The results of each measurement by data set."""


class CurtailmentCosts(AssertionError):
    """Curtailment took more samples or agreed less on some stream, although it is lossless."""


def measure(data, rules, max_samples, waves):
    """Run ``rules`` on the same streams with each kind of waves, without and with curtailment."""
    cells: Cells = {}
    for wave in waves:
        full = {name: decide(streams.answers, "fixed", max_samples).answer for name, streams in data.items()}
        for (label, rule), name in product(rules.items(), data):
            pair = replay(data[name], rule, max_samples, wave, full[name])
            for curtail, measured in zip((False, True), pair, strict=True):
                cells.setdefault(Key(label, wave, curtail), {})[name] = measured
    return cells


def replay(streams, rule, max_samples, wave, full):
    """Run ``rule`` without and with curtailment.

    ``full`` [S] are the answers of the full vote. ``CurtailmentCosts`` is raised if curtailment costs anything on any
    stream.
    """
    plain, curtailed = (
        decide(streams.answers, rule, max_samples, wave=wave, curtail=curtail) for curtail in (False, True)
    )
    agreed, agreed_curtailed = (
        np.array([a == b for a, b in zip(found.answer, full, strict=True)]) for found in (plain, curtailed)
    )
    if (curtailed.samples > plain.samples).any() or (agreed_curtailed < agreed).any():
        raise CurtailmentCosts(f"{rule} with at most {max_samples} samples in waves of {wave}")
    return _measured(streams, plain, agreed), _measured(streams, curtailed, agreed_curtailed)


def _measured(streams, found, agreed):
    of = streams.by_question
    return Measured(of(found.samples), of(found.waves), of(agreed))


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% bootstrap interval over questions."""

    value: float
    low: float
    high: float

    def show(self, form=".1f", scale=1.0):
        """Return the number and its interval as text, each times ``scale``."""
        value, low, high = (format(scale * number, form) for number in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


def estimate(*groups):
    """Return the mean of the means of ``groups``, each [Q]. Each group's questions are resampled."""
    return ratio(*[(group, np.ones_like(group)) for group in groups])


def ratio(*groups):
    """Return the mean of the first means over the mean of the second means; [Q] each, questions resampled in pairs."""
    over, under = (sum(_resampled(pair[side]) for pair in groups) for side in (0, 1))
    found = over / under
    low, high = np.quantile(found[1:], [0.025, 0.975])
    return Estimate(float(found[0]), float(low), float(high))


def _resampled(values):
    """Return the mean of ``values`` [Q], then its mean over each resample of the questions: [1 + RESAMPLES]."""
    return np.append(values.mean(), _resamples(len(values)) @ values)


@lru_cache
def _resamples(questions):
    """Return the share of each question in each resample, [RESAMPLES, Q], equal for equal numbers of questions."""
    rng = np.random.default_rng([SEED, questions])
    return rng.multinomial(questions, np.full(questions, 1 / questions), size=RESAMPLES) / questions
