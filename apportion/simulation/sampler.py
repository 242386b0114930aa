"""A sampler of simulated rollouts, for ``collect``. It knows the truth, and the rollouts that it returns do not.

Random numbers are a hash of their key, computed for whole arrays at once. The same key gives the same number, in any
order of requests. So two rules that sample rollout 3 of the same prompt at the same step get the same outcome, and
their differences are paired.

Reference: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (SplitMix64).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from apportion.checks import check_integer
from apportion.simulation.population import Population, place_of
from apportion.types import Counts, Floats, Mask, Prompt, Rollout

REWARD, TRUTH, FAILURE, ANSWER, LENGTH, PROMPT_LENGTH = range(1, 7)
"""Purposes of random numbers, so that those of one purpose do not depend on those of another."""

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Outcomes(NamedTuple):
    """The R rollouts that were drawn in one call: place of the prompt, verdict, truth, tokens, and what failed."""

    prompt: Counts
    reward: Mask
    right: Mask
    tokens: Counts
    answer: Counts
    failed: Mask


def draw_outcomes(population: Population, success: Floats, step: int, prompt: Counts, index: Counts) -> Outcomes:
    """Return the rollouts number ``index`` [R] of the prompts at ``prompt`` [R], at this ``step``.

    ``success`` [Q] is the probability of a right completion. The verdict is drawn first, and the truth given the
    verdict by Bayes' rule, so that verdicts depend on the truth through their probability only.
    """
    seed, p = population.seed, success[prompt]
    positive = population.reward_probability(p)
    reward = _uniforms(seed, REWARD, step, prompt, index) < positive
    right_and_reward = np.where(reward, p * (1 - population.false_negative), p * population.false_negative)
    right = _uniforms(seed, TRUTH, step, prompt, index) * np.where(reward, positive, 1 - positive) < right_and_reward
    failed = _uniforms(seed, FAILURE, step, prompt, index) < population.failures
    own = population.length_spread * _normals(seed, PROMPT_LENGTH, prompt)
    noise = population.length_noise * _normals(seed, LENGTH, step, prompt, index)
    median = population.tokens * np.where(right, 1.0, population.wrong_longer)
    tokens = np.maximum(np.rint(median * np.exp(own + noise)), 1).astype(np.int64)
    wrong = 1 + (_uniforms(seed, ANSWER, step, prompt, index) * population.wrong_answers).astype(np.int64)
    return Outcomes(prompt, reward, right, tokens, np.where(right, 0, wrong), failed)


@dataclass
class PopulationSampler:
    """Samples from a population whose success probabilities are ``success`` [Q] at one ``step``.

    Rollout i of a prompt at a step is the same in any order of requests and for every rule. ``drawn`` keeps the
    outcomes, for what measures the rule and not for the rule. The score norm of a rollout is its number of tokens, as
    if every token added the same.

    >>> population = Population(prompts=2)
    >>> sampler = PopulationSampler(population, population.start, step=0)
    >>> [len(rollouts) for rollouts in sampler(population.members, np.array([2, 3]))]
    [2, 3]
    """

    population: Population
    success: Floats
    step: int
    drawn: list[Outcomes] = field(default_factory=list, init=False, repr=False)
    _given: Counter[int] = field(default_factory=Counter, init=False, repr=False)

    def __call__(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """Return the next ``counts`` [P] rollouts of each of ``prompts`` [P], without those that failed."""
        places, numbers = [place_of(prompt) for prompt in prompts], [int(count) for count in counts]
        starts = []
        for place, number in zip(places, numbers, strict=True):
            starts.append(self._given[place])
            self._given[place] += number
        ends = np.cumsum(numbers, dtype=np.int64)
        index = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - numbers - starts, numbers)
        prompt = np.repeat(np.array(places, np.int64), numbers)
        found = draw_outcomes(self.population, self.success, self.step, prompt, index)
        self.drawn.append(found)
        rollouts = [
            None if failed else Rollout(reward, answer=f"a{answer}", tokens=tokens, score_norm=float(tokens))
            for _, reward, _, tokens, answer, failed in zip(*(column.tolist() for column in found), strict=True)
        ]
        groups = zip(ends.tolist(), numbers, strict=True)
        return [[each for each in rollouts[end - number : end] if each is not None] for end, number in groups]

    def outcomes(self) -> Outcomes:
        """Return all rollouts of the step, in the order of the rounds, failed ones included."""
        if not self.drawn:
            empty = np.zeros(0, np.int64)
            return draw_outcomes(self.population, self.success, self.step, empty, empty)
        return Outcomes(*(np.concatenate(columns) for columns in zip(*self.drawn, strict=True)))


def sampler_at(population: Population, step: int) -> PopulationSampler:
    """Return the sampler of one ``step`` of ``population``, for ``collect``.

    >>> from apportion import HORA, collect
    >>> population = Population(prompts=4)
    >>> collect(HORA(rollouts_per_prompt=4), population.members, sampler_at(population, 10)).asked.sum()
    np.int64(16)
    """
    check_integer("step", step, 0, "steps count from 0")
    return PopulationSampler(population, next(islice(population.walk(), step, None)), step)


def _uniforms(*key: ArrayLike) -> Floats:
    """Return numbers in (0, 1), one for each key. A key is whole numbers of at least 0; arrays are broadcast.

    >>> bool(_uniforms(1, [2, 3])[0] == _uniforms(1, 2))
    True
    """
    mixed = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        for part in key:
            mixed = _mix(mixed ^ (np.asarray(part, np.uint64) * GAMMA + GAMMA))
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _normals(*key: ArrayLike) -> Floats:
    """Return standard normal numbers, one for each key, as ``_uniforms`` does."""
    return np.asarray(scipy.special.ndtri(_uniforms(*key)))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the state after SplitMix64's finaliser, elementwise."""
    state = state + GAMMA
    state = (state ^ (state >> np.uint64(30))) * FIRST
    state = (state ^ (state >> np.uint64(27))) * SECOND
    return state ^ (state >> np.uint64(31))
