"""How well each predictor would have known the success of the next group, before it was sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apportion.predictors import (
    DiscountedCounts,
    EmpiricalBayes,
    GaussianProcess,
    MovingAverage,
    Predictor,
    UniformPrior,
)
from apportion.predictors.embeddings import Embedder
from apportion.records.run_record import RunRecord
from apportion.replay.foresight import (
    MOST_GROUPS,
    batches_of,
    calibration_error,
    correlation,
    foresee,
    joined,
    sample_of,
    shuffled,
)
from apportion.replay.intervals import Spanned, mean_over_prompts, per_unit, ratio_over_prompts
from apportion.types import Counts, Floats

SEEDS = (0, 1, 2)
"""Random orders of the prompts within a visit, used if the run did not record its batches."""
VISITS, SHOWN = 8, (0, 1, 2, 4, 7)
"""VISITS visits are replayed if the run's steps are visits, and the table shows those in SHOWN."""
MOST_BATCHES = 1_000
LEAST_GROUPS = 30
CONTROL = 8
"""Least number of groups that a control shuffles. Steps of fewer than half as many are joined: one prompt cannot be
shuffled."""
RECORDED = "the run's own"
CONTROLLED = ("empirical Bayes", "empirical Bayes, embeddings")
"""Predictors that are also shown with their beliefs shuffled within each batch: a control."""

Makers = Mapping[str, Callable[[], Predictor]]


@dataclass(frozen=True)
class ForesightCell:
    """Predictions of one predictor, at one visit of each prompt or over all visits.

    Args:
        visit: 0 for the first; None for all visits.
        groups: groups that were predicted.
        error: mean squared error of the predicted mean reward (Brier score), with a 95% interval over prompts. The
            noise of the groups is in it.
        correlation: with the mean reward of the group, None if all predictions or all rewards are equal.
        calibration: calibration error, the mean distance of predicted and observed means in ten bins.
    """

    visit: int | None
    groups: int
    error: Spanned
    correlation: float | None
    calibration: float


@dataclass(frozen=True)
class PredictorForesight:
    """The cells of one predictor. All predictors have the same visits."""

    predictor: str
    cells: tuple[ForesightCell, ...]


@dataclass(frozen=True)
class Foresight:
    """How well predictors knew.

    Args:
        predictors: one for each; the run's own belief first, if it was logged.
        prompts, groups: that were replayed.
        sampled: whether these are a random part of the prompts.
        merged: whether neighbouring steps were put into one batch, because there are very many.
        joined: whether the control shuffles over steps joined to ``CONTROL`` groups, because a step has too few.
        seeds: orders of the prompts that the errors are averaged over.
        problem: why there are none; "" otherwise.
    """

    predictors: tuple[PredictorForesight, ...]
    prompts: int
    groups: int
    sampled: bool
    merged: bool
    joined: bool
    seeds: int
    problem: str


def makers(embedder: Embedder | None = None, rates: Mapping[str, float] | None = None) -> Makers:
    """Return the predictors to compare, by name; those that need embeddings or known rates only with these."""
    found: dict[str, Callable[[], Predictor]] = {
        "one half for all": UniformPrior,
        "counts": DiscountedCounts,
        "moving average": MovingAverage,
        "empirical Bayes": EmpiricalBayes,
    }
    if embedder is not None:
        found |= {
            "gp": lambda: GaussianProcess(embedder),
            "gp, noise 1": lambda: GaussianProcess(embedder, noise=1.0),
            "empirical Bayes, embeddings": lambda: EmpiricalBayes(embedder),
        }
    if rates:
        found["empirical Bayes, known rates"] = lambda: EmpiricalBayes(rates=rates)
    if rates and embedder is not None:
        found["empirical Bayes, both"] = lambda: EmpiricalBayes(embedder, rates)
    return found


def foresight_of(
    record: RunRecord, embedder: Embedder | None = None, rates: Mapping[str, float] | None = None
) -> Foresight:
    """Return how well each predictor knew. Rewards must be within 0 and 1.

    A run of more than 64,000 groups is replayed for a random sample of its prompts. If the steps are visits, the first
    eight visits are replayed, in three random orders.
    """
    part = record.of_groups(record.step < VISITS) if record.visits else record
    part = sample_of(part, MOST_GROUPS)
    size = len(np.unique(part.prompt))
    sampled = size < len(np.unique(record.prompt))
    if (problem := _problem(part)) is not None:
        return Foresight((), size, len(part.step), sampled, False, False, 0, problem)
    seeds = SEEDS if record.visits else SEEDS[:1]
    orders = [coarse(batches_of(part, seed)) for seed in seeds]
    steps = len(np.unique(part.step))
    shown = [visit for visit in SHOWN if (part.visit == visit).sum() >= LEAST_GROUPS]
    means: dict[str, list[Floats]] = {}
    if not np.isnan(part.predicted).all():
        means[RECORDED] = [part.predicted]
    few = float(np.median([len(places) for places in orders[0]])) < CONTROL / 2
    for batches in orders:
        control = joined(batches, CONTROL) if few else batches
        for name, make in makers(embedder, rates).items():
            if (predictor := make()).needs.binary and not part.binary:
                continue
            belief = foresee(predictor, part, batches)
            means.setdefault(name, []).append(belief.mean)
            if name in CONTROLLED:
                means.setdefault(f"{name}, shuffled", []).append(shuffled(belief, control).mean)
    found = [PredictorForesight(name, _cells(part, own, shown)) for name, own in means.items()]
    merged = not record.visits and len(orders[0]) < steps
    return Foresight(tuple(found), size, len(part.step), sampled, merged, few, len(seeds), "")


def coarse(batches: Sequence[Counts], most: int = MOST_BATCHES) -> list[Counts]:
    """Return at most ``most`` batches: neighbours are joined if there are more."""
    if len(batches) <= most:
        return list(batches)
    parts = np.array_split(np.arange(len(batches)), most)
    return [np.concatenate([batches[i] for i in part]) for part in parts]


def _problem(record: RunRecord) -> str | None:
    known = record.reward[~np.isnan(record.reward)]
    if not len(known) or (record.trials > 0).sum() < LEAST_GROUPS:
        return f"foresight needs {LEAST_GROUPS} groups with rewards, this run has {(record.trials > 0).sum()}"
    if known.min() < 0 or known.max() > 1:
        return f"foresight needs rewards within 0 and 1, this run has {known.min():g} to {known.max():g}"
    return None


def _cells(record: RunRecord, means: Sequence[Floats], shown: Sequence[int]) -> tuple[ForesightCell, ...]:
    known = (record.trials > 0) & ~np.isnan(means[0])
    places = [(visit, np.flatnonzero(known & (record.visit == visit))) for visit in shown]
    wanted: list[tuple[int | None, Counts]] = [*places, (None, np.flatnonzero(known))]
    return tuple(_cell(record, means, visit, some) for visit, some in wanted if len(some))


def _cell(record: RunRecord, means: Sequence[Floats], visit: int | None, some: Counts) -> ForesightCell:
    shares = record.shares[some]
    squared = np.mean([(mean[some] - shares) ** 2 for mean in means], axis=0)
    if visit is None:
        sums = per_unit(record.prompt[some], np.stack([squared, np.ones(len(some))], axis=1), len(record.ids))
        error = ratio_over_prompts(*sums[sums[:, 1] > 0].T)
    else:
        error = mean_over_prompts(squared)
    together = float(np.mean([correlation(mean[some], shares) for mean in means]))
    apart = float(np.mean([calibration_error(mean[some], shares) for mean in means]))
    return ForesightCell(visit, len(some), error, None if np.isnan(together) else together, apart)
