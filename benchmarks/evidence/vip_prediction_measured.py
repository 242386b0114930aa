"""Errors of predicted success along training, as in VIP's Figure 3: in the lab, and on a recorded GRPO run.

Every predictor foresees a mini-batch before it is sampled and learns from it afterwards. None of them decides anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np

from apportion import Belief
from apportion.allocators import Uniform
from apportion.predictors import (
    DiscountedCounts,
    GaussianProcess,
    MovingAverage,
    PrecomputedEmbeddings,
    Predictor,
    SentenceTransformerEmbedder,
    Shuffled,
    UniformPrior,
)
from apportion.predictors.statistics.per_prompt import observations
from apportion.replay.foresight import batches_of, foresee
from apportion.types import Floats
from benchmarks.evidence.learning import FIVE, ran, trainer_of, with_half_width
from benchmarks.real_run_data import grpo_run
from benchmarks.ridge import Ridge

STEPS, PROMPTS_PER_STEP, GROUP, WINDOW = 55, 16, 8, 1024
RATES = {"hard": 1e-3, "medium": 5e-4}
PHASES = {"1 to 10": (0, 10), "11 to 30": (10, 30), "31 to 55": (30, 55), "all": (0, 55)}
ORDERS = (0, 1)
RIVALS = ("moving average", "ridge")
RECORDED_BATCH, RECORDED_EPOCHS = 128, 6


@dataclass
class OneMean(Predictor):
    """A control: the mean of the most recent observations, the same for every prompt."""

    name: ClassVar[str] = "one_mean"
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW), init=False)

    def predict(self, prompts):
        return Belief.from_mean(np.full(len(prompts), np.mean(self._recent or [0.5])), 2.0)

    def update(self, batch):
        self._recent.extend(seen.rate for seen in observations(batch))


def predictors(embedder, batch):
    """Return the predictors to compare. The paper's 1024 samples are two of its mini-batches: ``2 * batch`` here."""
    return {
        "gp": GaussianProcess(embedder),
        "moving average": MovingAverage(WINDOW),
        "ridge": Ridge(embedder, WINDOW),
        "moving average, two batches": MovingAverage(2 * batch),
        "ridge, two batches": Ridge(embedder, 2 * batch),
        "gp, noise 1": GaussianProcess(embedder, noise=1.0),
        "counts": DiscountedCounts(),
        "gp, shuffled": Shuffled(GaussianProcess(embedder)),
        "one mean for all": OneMean(),
        "one half for all": UniformPrior(),
    }


@dataclass(frozen=True)
class Watched(Uniform):
    """Uniform, whose batches are foreseen by predictors that then learn from them."""

    predictors: Mapping[str, Predictor] = field(default_factory=dict)
    foreseen: list[dict[str, Floats]] = field(default_factory=list)

    def prepare(self, prompts):
        for each in self.predictors.values():
            each.prepare(prompts)

    def start(self, prompts):
        self.foreseen.append({name: each.predict(prompts).mean for name, each in self.predictors.items()})
        return super().start(prompts)

    def observe(self, batch):
        for each in self.predictors.values():
            each.update(batch)


def lab(base):
    """Return mean absolute errors by predictor, target and phase, one for each seed."""
    training = {
        "base": base,
        "prompts_per_step": PROMPTS_PER_STEP,
        "steps": STEPS,
        "evaluate_every": STEPS,
        "held_out": 100,
        "learning_rate": RATES[base],
    }
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for seed in FIVE:
        watched = Watched(GROUP, predictors(SentenceTransformerEmbedder(), PROMPTS_PER_STEP))
        with trainer_of(watched, training, seed) as trainer:
            exact = ran(trainer).steps["p"].reshape(STEPS, PROMPTS_PER_STEP)
        for name in watched.predictors:
            foreseen = np.array([each[name] for each in watched.foreseen])
            by_phase = found.setdefault(name, {}).setdefault("exact p", {})
            for phase, steps in PHASES.items():
                by_phase.setdefault(phase, []).append(float(np.abs(foreseen - exact)[slice(*steps)].mean()))
    return {"errors": found}


def recorded():
    """Return mean absolute errors on the recorded run, and the GP's less those of its rivals with their half widths.

    Its first six visits to each problem make 60 batches in a random order, of which the first 55 count. The target is
    the success rate of the group.
    """
    data = grpo_run()
    record = data.record(RECORDED_EPOCHS)
    embedder = PrecomputedEmbeddings.from_array(data.prompts, data.embeddings)
    errors: dict[tuple[str, str], list[Floats]] = {}
    for order in ORDERS:
        batches = batches_of(record, order, RECORDED_BATCH)
        beliefs = {name: foresee(each, record, batches) for name, each in predictors(embedder, RECORDED_BATCH).items()}
        for phase, (first, end) in PHASES.items():
            places = np.concatenate(batches[first:end])
            problems = record.prompt[places]
            visits = np.bincount(problems, minlength=len(data.rewards))
            for name, belief in beliefs.items():
                apart = np.abs(belief.mean[places] - record.shares[places])
                sums = np.bincount(problems, apart, minlength=len(visits))
                mean = np.divide(sums, visits, out=np.full(len(visits), np.nan), where=visits > 0)
                errors.setdefault((name, phase), []).append(mean)
    by_problem = {key: np.nanmean(np.stack(each), axis=0) for key, each in errors.items()}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (name, phase), each in by_problem.items():
        found.setdefault(name, {}).setdefault("group", {})[phase] = float(np.nanmean(each))
    differences = {rival: {"group": {}} for rival in RIVALS}
    for rival, phase in product(RIVALS, PHASES):
        apart = by_problem["gp", phase] - by_problem[rival, phase]
        differences[rival]["group"][phase] = with_half_width(apart[~np.isnan(apart)])
    return {"errors": found, "gp less": differences}
