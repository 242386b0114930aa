"""Rules against each other on the same populations of prompts, with an oracle and uniform as controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from apportion.checks import check_integer
from apportion.evaluation import seed_interval
from apportion.simulation.course import course
from apportion.simulation.measures import StepMeasures, measure
from apportion.simulation.population import Population, place_of
from apportion.simulation.rules import SimulatedRule, make_rule
from apportion.types import Floats
from apportion.untrusted import shown

CONTROL, BEST = "uniform", "vip:oracle"
"""The rules that every simulation has: equal counts on shuffled prompts, and VIP with exact probabilities."""


class SimulatedEstimate(NamedTuple):
    """A mean over seeds and the half width of its 95% interval (Student's t); nan for a single seed."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        if np.isnan(self.mean):
            return "-"
        return f"{self.mean:.3f}" + ("" if np.isnan(self.half_width) else f" ± {self.half_width:.3f}")


@dataclass(frozen=True, eq=False)
class RuleCourse:
    """Measures of one rule. ``values`` [S, T, M] holds those of S seeds and T steps, in the order of ``StepMeasures``.

    ``coverage`` [S, T] is the share of the population that had rollouts by each step.
    """

    rule: str
    values: Floats
    coverage: Floats

    def of(self, name: str) -> Floats:
        """Return one measure, [S, T]. Raise ValueError for an unknown name."""
        if name not in StepMeasures._fields:
            raise ValueError(f"a measure must be one of {', '.join(StepMeasures._fields)}, got {shown(name)}")
        return np.asarray(self.values[..., StepMeasures._fields.index(name)])


@dataclass(frozen=True, eq=False)
class Simulation:
    """The result of ``simulate``. Intervals are over seeds; ratios to the control are paired by seed.

    Args:
        population: its settings; the seed is replaced by each of ``seeds``.
        steps: number of steps, T.
        prompts_per_step: prompts of a batch.
        rollouts_per_prompt: of the budget, on average.
        seeds: [S].
        courses: measures by rule, the controls first.
        embedding_correlations: achieved by the embeddings of each seed, [S]; 0 without embeddings.
        rate_correlations: achieved by the known rates of each seed, [S]; 0 without rates.
    """

    population: Population
    steps: int
    prompts_per_step: int
    rollouts_per_prompt: int
    seeds: tuple[int, ...]
    courses: dict[str, RuleCourse]
    embedding_correlations: tuple[float, ...]
    rate_correlations: tuple[float, ...]

    def variance(self, rule: str) -> SimulatedEstimate:
        """RLOO variance over that of an even split of the same rollouts over the same prompts; below 1 is a gain."""
        return estimate(ratio(self._sums(rule, "variance"), self._sums(rule, "uniform")))

    def regret(self, rule: str) -> SimulatedEstimate:
        """By what share the RLOO variance is above the least possible for the same prompts and rollouts."""
        return estimate(ratio(self._sums(rule, "variance"), self._sums(rule, "optimum")) - 1)

    def noise(self, rule: str) -> SimulatedEstimate:
        """RLOO variance over the square of the signal, relative to the control's, so that selections compare too."""
        own, control = (
            (ratio(each.of("variance"), each.of("signal") ** 2) * each.of("rollouts")).mean(axis=1)
            for each in (self.courses[rule], self.courses[CONTROL])
        )
        return estimate(ratio(own, control))

    def share(self, rule: str, name: str) -> SimulatedEstimate:
        """A measure of groups (mixed, spurious or hits) over the number of groups."""
        return estimate(self._sums(rule, name) / self._sums(rule, "prompts"))

    def mixed_per_rollout(self, rule: str) -> SimulatedEstimate:
        """Mixed groups per rollout, over the control's."""
        own, control = (self._sums(each, "mixed") / self._sums(each, "rollouts") for each in (rule, CONTROL))
        return estimate(ratio(own, control))

    def average(self, rule: str, name: str) -> SimulatedEstimate:
        """A measure per step, for example rollouts, tokens or seconds."""
        return estimate(self.courses[rule].of(name).mean(axis=1))

    def coverage(self, rule: str) -> SimulatedEstimate:
        """Share of the population that had rollouts by the end."""
        return estimate(self.courses[rule].coverage[:, -1])

    def _sums(self, rule: str, name: str) -> Floats:
        """Return the sums of a measure over the steps, [S]."""
        return np.asarray(self.courses[rule].of(name).sum(axis=1))


def simulate(
    population: Population,
    rules: Sequence[str],
    steps: int = 50,
    prompts_per_step: int = 128,
    seeds: Sequence[int] = (0, 1, 2),
    rollouts_per_prompt: int = 8,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    on_course: Callable[[int, int], None] = lambda done, total: None,
) -> Simulation:
    """Return how ``rules`` do on populations like ``population``, one for each of ``seeds``.

    A rule is a text as ``make_rule`` reads it, and ``settings`` has the tables of rules with settings of their own.
    ``uniform`` and ``vip:oracle`` are added as controls. Rules see the same prompts, the same drift and, for the same
    rollout of a prompt at a step, the same outcome. Nothing is trained: the population moves by its own drift.
    ``on_course`` is told after each rule and seed how many of all are done.

    Raises ValueError for rules or numbers that do not fit, before anything is drawn.

    >>> found = simulate(Population(prompts=500), ["vip"], steps=3, prompts_per_step=64, seeds=(0, 1))
    >>> list(found.courses), found.variance("uniform").mean, found.regret("vip:oracle").mean
    (['uniform', 'vip:oracle', 'vip'], 1.0, 0.0)
    """
    check_integer("rollouts_per_prompt", rollouts_per_prompt, 1, "a prompt needs a rollout")
    names = list(dict.fromkeys([CONTROL, BEST, *rules]))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {list(seeds)}; three give an interval")
    small, tables = population.resized(1), settings or {}
    unused = [name for name in tables if name not in names]
    if unused:
        raise ValueError(f"settings must be of a rule that is simulated, got {shown(unused[0])}; name it as a rule")
    for name in names:
        make_rule(name, small, rollouts_per_prompt, tables.get(name))
    found: dict[str, list[tuple[Floats, Floats]]] = {name: [] for name in names}
    correlations = []
    for seed in seeds:
        own = population.with_seed(seed)
        for name in names:
            rule = make_rule(name, own, rollouts_per_prompt, tables.get(name))
            found[name].append(_course(own, rule, steps, prompts_per_step))
            on_course(sum(map(len, found.values())), len(names) * len(seeds))
        correlations.append((own.embedding_correlation, own.achieved_rate_correlation))
    return Simulation(
        population,
        steps,
        prompts_per_step,
        rollouts_per_prompt,
        tuple(seeds),
        {name: RuleCourse(name, *map(np.stack, zip(*each, strict=True))) for name, each in found.items()},
        *zip(*correlations, strict=True),
    )


def ratio(above: Floats, below: Floats) -> Floats:
    """Return ``above / below``, nan where ``below`` is 0: success without variance has nothing to compare."""
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below != 0)


def estimate(values: Floats) -> SimulatedEstimate:
    """Return the mean of one value for each seed, [S], and the half width of its interval."""
    return SimulatedEstimate(*map(float, seed_interval(values)))


def _course(population: Population, rule: SimulatedRule, steps: int, prompts_per_step: int) -> tuple[Floats, Floats]:
    """Return the measures [T, M] and the coverage [T] of one rule and one seed."""
    seen, measures, coverage = np.zeros(population.prompts, bool), [], []
    for step in course(population, rule, steps, prompts_per_step):
        seen[[place_of(prompt) for prompt in step.batch.prompts]] = True
        measures.append(measure(population, rule.allocator, step))
        coverage.append(seen.mean())
    return np.array(measures, np.float64), np.array(coverage)
