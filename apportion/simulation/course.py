"""The course of a simulation: a rule and a population, step by step, as a trainer would call them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import process_time
from typing import NamedTuple

from apportion.allocators import Allocator
from apportion.checks import check_integer
from apportion.loop import collect
from apportion.selection import Selector
from apportion.simulation.population import Population
from apportion.simulation.rules import SimulatedRule
from apportion.simulation.sampler import Outcomes, PopulationSampler
from apportion.types import Batch, Floats, Group, Needs, Plan, Prompt

MOST_ROLLOUTS_A_STEP = 2**24
"""Each takes about 300 bytes while its step runs."""


class Seconds(NamedTuple):
    """CPU seconds of the parts of one step. ``choose`` has those of predicting, if the selection reads a belief."""

    choose: float
    predict: float
    plan: float
    observe: float


@dataclass(frozen=True)
class SimulatedStep:
    """One finished step.

    Args:
        step: its number, from 0.
        batch: what the rule saw of it.
        groups: what would be trained on.
        success: the true success probabilities of all prompts, [Q].
        outcomes: all rollouts, with the truth.
        seconds: what the decisions took. Sampling is not part of it.
    """

    step: int
    batch: Batch
    groups: Sequence[Group]
    success: Floats
    outcomes: Outcomes
    seconds: Seconds


def course(population: Population, rule: SimulatedRule, steps: int, prompts_per_step: int) -> Iterator[SimulatedStep]:
    """Yield ``steps`` steps of ``prompts_per_step`` prompts each. The rule learns between them; the population moves.

    Raises ValueError for less than one step, and for more prompts a step than there are.
    """
    check_integer("steps", steps, 1, "simulate a step or more")
    check_integer("prompts_per_step", prompts_per_step, 1, "a batch needs a prompt")
    if prompts_per_step > population.prompts:
        raise ValueError(
            f"prompts_per_step must be at most {population.prompts:,}, the whole population, got "
            f"{prompts_per_step:,}; lower it, or simulate more prompts"
        )
    asked = rule.allocator.size(prompts_per_step).asked or 0
    if asked > MOST_ROLLOUTS_A_STEP:
        raise ValueError(
            f"the rollouts of a step must be at most {MOST_ROLLOUTS_A_STEP:,} to fit in memory, got {asked:,} for "
            f"{rule.name}; lower the prompts of a step or the rollouts of a prompt"
        )
    members = population.members
    rule.tell(population.reward_probability(population.start))
    rule.allocator.prepare(members)
    rule.selector.prepare(members, population.seed, getattr(rule.allocator, "predictor", None))
    for step, success in enumerate(islice(population.walk(), steps)):
        rule.tell(population.reward_probability(success))
        sampler, source = PopulationSampler(population, success, step), _Source(rule.selector, members)
        timed = TimedAllocator(rule.allocator)
        begun = process_time()
        prompts = source(prompts_per_step)
        choosing = process_time() - begun
        batch = collect(timed, prompts, sampler, source=source)
        groups = rule.allocator.groups(batch)
        begun = process_time()
        rule.allocator.observe(batch)
        rule.selector.observe(batch.sampled)
        seconds = Seconds(choosing, timed.predicting, timed.planning, process_time() - begun)
        yield SimulatedStep(step, batch, groups, success, sampler.outcomes(), seconds)


class _Source:
    """Draws prompts that the batch of a step does not hold."""

    def __init__(self, selector: Selector, members: Sequence[Prompt]) -> None:
        self.selector, self.members = selector, members
        self.held: list[str] = []

    def __call__(self, count: int) -> list[Prompt]:
        chosen = [self.members[row] for row in self.selector.choose(count, self.held)]
        self.held += [prompt.id for prompt in chosen]
        return chosen


class TimedAllocator(Allocator):
    """An allocator that does what ``rule`` does, and sums up the CPU seconds that it takes to predict and to plan."""

    name = "timed"

    def __init__(self, rule: Allocator) -> None:
        self.rule = rule
        self.predicting = self.planning = 0.0

    @property
    def needs(self) -> Needs:
        return self.rule.needs

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        begun = process_time()
        batch = self.rule.start(prompts)
        self.predicting += process_time() - begun
        return batch

    def plan(self, batch: Batch) -> Plan:
        begun = process_time()
        plan = self.rule.plan(batch)
        self.planning += process_time() - begun
        return plan
