"""Baselines by weight, and the second moment of the policy gradient that each leaves on rollouts it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from apportion.baselines.optimal import Optimal, Scope
from apportion.types import Batch, Belief, Floats, Plan, Prompt, Rollout

WEIGHTS = {
    "parameters": "parameter norm",
    "logits": "logit norm",
    "squared": "sum (1 - pi)^2",
    "linear": "sum (1 - pi)",
    "surprise": "-log pi",
    "tokens": "length",
    "equal": "equal",
}
"""The names of weights in a table."""


@dataclass(frozen=True)
class Samples:
    """Rewards [P, n] of n rollouts of each prompt, and their measures [P, n] by name, keys of ``WEIGHTS``."""

    rewards: Floats
    measures: Mapping[str, Floats]

    def at(self, prompts, columns):
        """Return the rollouts at ``columns`` [P, m] of ``prompts`` [P]."""

        def take(values):
            return np.take_along_axis(values[prompts], columns, axis=1)

        return Samples(take(self.rewards), {name: take(values) for name, values in self.measures.items()})

    def moment(self, baseline):
        """Return the mean of (r - b)^2 |g|^2, for a baseline that broadcasts to [P, n]."""
        return float(((self.rewards - baseline) ** 2 * self.measures["parameters"]).mean())


Rule = Callable[[Samples, Samples], Floats]
"""Returns a baseline for the second samples, broadcastable to [P, n], from the first ones or from themselves."""


def zero(history, present):
    """Return 0."""
    return np.zeros(1)


def success(history, present):
    """Return each prompt's mean reward in the history, [P, 1]."""
    return history.rewards.mean(axis=1, keepdims=True)


def constant(weight):
    """One number for all prompts: the weighted mean reward of the history."""

    def rule(history, present):
        w = history.measures[weight]
        return np.array((w * history.rewards).sum() / w.sum())

    return rule


def group(weight):
    """The weighted mean reward of the other rollouts of the group, without any history. RLOO's has equal weights."""
    return lambda history, present: leave_one_out(present.rewards, present.measures[weight], axis=1)


def singles(weight):
    """The weighted mean reward of the other prompts of a batch with one rollout each: a column, without any history."""
    return lambda history, present: leave_one_out(present.rewards, present.measures[weight], axis=0)


def shipped(scope):
    """``Optimal`` as it is shipped, by sums of (1 - pi)^2: the history comes in batches with one rollout a prompt."""

    def rule(history, present):
        baseline, prompts = Optimal(scope=scope), [Prompt(str(q)) for q in range(len(history.rewards))]
        for rewards, norms in zip(history.rewards.T, history.measures["squared"].T, strict=True):
            made = [[Rollout(bool(reward), score_norm=norm)] for reward, norm in zip(rewards, norms, strict=True)]
            empty = Batch.start(prompts, Belief.uniform(len(prompts)))
            baseline.update(empty.add(Plan(np.ones(len(prompts))), made))
        return baseline.predict(prompts)[:, None]

    return rule


def leave_one_out(rewards, weights, axis):
    """Return the weighted mean of the other rewards along ``axis``; 0 if all others have no weight."""
    total = weights.sum(axis=axis, keepdims=True) - weights
    products = (weights * rewards).sum(axis=axis, keepdims=True) - weights * rewards
    return np.divide(products, total, out=np.zeros_like(total), where=total > 0)


FAMILIES: dict[str, tuple[Callable[[str], Rule], tuple[str, ...]]] = {
    "constant": (constant, ("parameters", "squared", "equal")),
    "others of the group": (group, ("parameters", "squared", "tokens", "equal")),
    "other prompts, singles": (singles, ("parameters", "squared")),
}
"""Makers of baselines from a weight, and the weights that each is tried with, the parameter norm first."""

Name = tuple[str, str]
"""A family and a weight."""

SHIPPED: dict[Name, Rule] = {(f"`Optimal`, {scope}", "squared"): shipped(scope) for scope in get_args(Scope)}

RLOO: Name = ("others of the group", "equal")


def rules():
    """Return every rule by family and weight."""
    plain: dict[Name, Rule] = {("b = 0", "-"): zero, ("own mean", "-"): success}
    made = {(family, weight): make(weight) for family, (make, weights) in FAMILIES.items() for weight in weights}
    return plain | made


def halves(samples, rng, resample):
    """Split each prompt's rollouts at random into history and present; ``resample`` draws the prompts too.

    Copies of a drawn prompt are split alike, so that no rollout is in both halves.
    """
    size, number = samples.rewards.shape
    prompts = rng.integers(size, size=size) if resample else np.arange(size)
    columns = rng.permuted(np.tile(np.arange(number), (size, 1)), axis=1)[prompts]
    return samples.at(prompts, columns[:, : number // 2]), samples.at(prompts, columns[:, number // 2 :])


def moments(samples, draws, resample=False, seed=0, more=None):
    """Return the second moment [draws] under ``rules`` and ``more``, on the half that their history does not hold."""
    rng, chosen = np.random.default_rng(seed), rules() | dict(more or {})
    found = {name: np.empty(draws) for name in chosen}
    for draw in range(draws):
        history, present = halves(samples, rng, resample)
        for name, rule in chosen.items():
            found[name][draw] = present.moment(rule(history, present))
    return found


def ratio(one, other):
    """Return ``one`` over ``other`` where a draw has any second moment, that is, any right rollout."""
    return one[other > 0] / other[other > 0]
