"""Small builders shared by the tests."""

import itertools
import json
from dataclasses import replace

import numpy as np

from apportion import ALLOCATORS, Batch, Belief, Plan, Prompt, Rollout

LABEL_FREE = {name: rule for name, rule in ALLOCATORS.items() if not rule().needs.labels}
LABELLED = {name: rule for name, rule in ALLOCATORS.items() if name not in LABEL_FREE}
GROUP_RELATIVE = frozenset(
    {"grpo", "dr_grpo", "rloo", "sequential", "group_optimal", "opo", "maxrl", "reinforce_plus_plus_baseline"}
)
"""Estimators that give exactly 0 to every rollout of a group of one and of a group of equal rewards."""


def make_prompts(count):
    return [Prompt(f"prompt {q}") for q in range(count)]


def make_batch(outcomes, belief=None):
    """Return a batch of one round with these 0/1 outcomes: ``make_batch([[1, 0], [1]])``."""
    batch = Batch.start(make_prompts(len(outcomes)), belief or Belief.uniform(len(outcomes)))
    plan = Plan([len(group) for group in outcomes])
    return batch.add(plan, [[Rollout(bool(outcome)) for outcome in group] for group in outcomes])


def finished(prompts, rollouts, asked=None):
    """Return a batch of one round with these ``rollouts``. As many were ``asked`` for, unless more are given."""
    plan = Plan(asked or [len(group) for group in rollouts])
    return Batch.start(prompts, Belief.uniform(len(prompts))).add(plan, rollouts)


def write_jsonl(path, rows):
    """Write a line of JSON for each of ``rows``, and return the file."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def bernoulli_sampler(success, seed=0, failing=0.0, completions=False):
    """Return a sampler whose rollout number i of prompt q of ``make_prompts`` is the same in any order of requests.

    A share ``failing`` of the rollouts fails. With ``completions``, each has one of its own.
    """
    drawn = [0] * len(success)

    def sample(prompts, counts):
        rollouts = []
        for prompt, count in zip(prompts, counts, strict=True):
            q = int(prompt.text.split()[1])
            numbers = range(drawn[q], drawn[q] + int(count))
            drawn[q] += int(count)
            made = [_rollout(seed, q, i, success[q], failing) for i in numbers]
            named = [r and replace(r, completion=(seed, q, i)) for i, r in zip(numbers, made, strict=True)]
            rollouts.append([r for r in (named if completions else made) if r is not None])
        return rollouts

    return sample


def splits(budget, low, high, prompts):
    """Return every split of ``budget`` among ``prompts``, from ``low`` to ``high`` each."""
    every = itertools.product(range(low, high + 1), repeat=prompts)
    return [np.array(counts) for counts in every if sum(counts) == budget]


def _rollout(seed, q, i, success, failing):
    fails, correct, length = np.random.default_rng([seed, q, i]).random(3)
    tokens = 1 + int((20 + 10 * q) * 2 * length)
    answer = "yes" if correct < success else "no"
    return None if fails < failing else Rollout(bool(correct < success), answer=answer, tokens=tokens)
