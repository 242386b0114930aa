"""Phantom groups: all outcomes are equal and the rewards differ, so the shaping of the reward alone trains there.

A reward is often an outcome plus a shaping term, such as one of length or format. Groups of equal outcomes are dead
for the outcome. A group-relative estimator divides their small spread by itself (GRPO) or takes it as it is (RLOO).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from apportion.diagnosis.waste import time_bins
from apportion.records.run_record import RunRecord
from apportion.replay.intervals import Spanned, per_unit, ratio_over_prompts
from apportion.scheduler.outcomes import are_verdicts
from apportion.scheduler.shaping import StepShaping, shaping_of
from apportion.types import Floats, Mask

SHAPING = re.compile(
    r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?:(?i:len|tag|cost|short|long|brief|soft|xml|token)(?:s|er)?(?![a-z])"
    r"|(?i:length|over(?:long|length)|format|xmlcount|penal|punish|brev|concis|verbos|styl|repet|languag))"
)
"""Beginnings, or whole words, of column names of shaping terms, such as length. They may fall while answers get
better."""
OUTCOME = re.compile(r"correct|\bacc|accura|verdict|solved|success|pass|match|outcome", re.IGNORECASE)
"""Column names that mark whether a rollout is right."""


@dataclass(frozen=True)
class PhantomPart:
    """Phantom groups of one part of a run, with 95% intervals by bootstrap over prompts.

    Args:
        label: the steps.
        groups: the share of phantom groups among groups with two rewards or more.
        normalised: their share of the squared advantages if each group is divided by its deviation, as in GRPO.
        centred: the same without that division, as in RLOO and Dr. GRPO.
        accuracy: the mean outcome.
        rest: the mean of what the reward has beside it.
    """

    label: str
    groups: Spanned
    normalised: Spanned
    centred: Spanned
    accuracy: float
    rest: float


@dataclass(frozen=True)
class Phantoms:
    """Phantom groups of a run: the column of the ``outcome``, the ``whole`` run, and its course ``over_time``."""

    outcome: str
    whole: PhantomPart
    over_time: tuple[PhantomPart, ...]


def phantoms_of(record: RunRecord) -> Phantoms | None:
    """Return the phantom groups of a run; None without two values of each rollout, an outcome and a trained reward.

    Groups of which no rollout entered the loss are left out: a filter by the outcome has no phantom groups.
    """
    found = _apart(record)
    if found is None:
        return None
    name, outcome, reward = found
    known = np.where(np.isnan(outcome) | np.isnan(reward), np.nan, 1.0)
    trained, judged = replace(record, reward=reward * known), replace(record, reward=outcome * known)
    compared = (trained.trials >= 2) & (trained.sums(trained.kept) > 0)
    phantom = compared & trained.mixed & ~judged.mixed
    normalised = np.where(compared & trained.mixed, trained.trials, 0.0)
    centred = np.where(compared, trained.trials * np.nan_to_num(trained.variances), 0.0)
    columns = np.stack([compared, normalised, centred], axis=1).astype(np.float64)

    def part(label: str, some: Mask) -> PhantomPart:
        own = np.concatenate([columns * (some & phantom)[:, None], columns * some[:, None]], axis=1)
        by_prompt = per_unit(record.prompt, own, len(record.ids))
        groups, by_grpo, by_rloo = (ratio_over_prompts(by_prompt[:, i], by_prompt[:, 3 + i]) for i in range(3))
        right, whole = (float(each.totals[some].sum() / max(1, each.trials[some].sum())) for each in (judged, trained))
        return PhantomPart(label, groups, by_grpo, by_rloo, right, whole - right)

    everything = part("all", np.ones(len(record.step), bool))
    return Phantoms(name, everything, tuple(part(label, some) for label, some in time_bins(record)))


def shaping_steps(record: RunRecord) -> Iterator[tuple[int, StepShaping | None]]:
    """Yield each step of a run with its shaping; none if outcomes and rewards are not told apart."""
    if (found := _apart(record)) is None:
        return
    _, outcome, reward = found
    group = record.group
    outcome = np.where((record.sums(record.kept) > 0)[group], outcome, np.nan)
    steps, begins = np.unique(record.step, return_index=True)
    for step, rows in zip(steps.tolist(), np.split(np.arange(len(reward)), record.first[begins[1:]]), strict=True):
        yield step, shaping_of(outcome[rows], reward[rows], group[rows])


def _apart(record: RunRecord) -> tuple[str, Floats, Floats] | None:
    """Return the name and values [R] of the outcome, and the trained reward [R]; None if both are the same."""
    trained = record.components.get("reward")
    if record.outcome is not None:
        return record.outcome, record.components[record.outcome], record.reward if trained is None else trained
    if record.binary:
        return None if trained is None or are_verdicts(np.unique(trained)) else ("correct", record.reward, trained)
    binary = {name: each for name, each in record.components.items() if _is_outcome(name, each)}
    named = {name: each for name, each in binary.items() if OUTCOME.search(name)} or binary
    if len({each.tobytes() for each in named.values()}) != 1:  # the same outcome may have several columns
        return None
    name = next(iter(named))
    return name, named[name], record.reward


def _is_outcome(name: str, values: Floats) -> bool:
    """Return whether a column holds verdicts. A column with one value only must have an outcome's name."""
    found = np.unique(values[~np.isnan(values)])
    return are_verdicts(found) and len(found) >= 2 - bool(OUTCOME.search(name)) and not SHAPING.search(name)
