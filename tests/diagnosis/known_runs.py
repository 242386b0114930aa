"""Runs whose truth is known: rows of rollouts, or of the means of steps, and the signs that they have.

A run is made of functions of the step, which return a rate, a mean, or a value.
"""

import math

import numpy as np

from apportion.records import ScalarsOnlyError, open_run
from tests.records.importing.tables import jsonl

STEPS, GROUPS, GROUP, PROMPTS = 60, 8, 8, 40


def rollouts(rate, *, steps=STEPS, groups=GROUPS, group=GROUP, prompts=PROMPTS, prompt=None, seed=0, **columns):
    """Return rows of rollouts with a success ``rate(step, prompt)``. Prompts come in shuffled epochs.

    ``prompt(step, place)`` names the prompt of a group otherwise. ``columns`` are functions of the step, the reward and
    a generator.
    """
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(prompts) for _ in range(1 + steps * groups // prompts)])
    rows = []
    for step in range(steps):
        for place in range(groups):
            own = int(order[step * groups + place]) if prompt is None else prompt(step, place)
            for _ in range(group):
                reward = float(rng.random() < rate(step, own))
                made = {name: column(step, reward, rng) for name, column in columns.items()}
                rows.append({"step": step + 1, "prompt": f"q{own}", "reward": reward, **made})
    return rows


def line(start, end, steps=STEPS):
    return lambda step, *_: start + (end - start) * min(1, step / (steps - 1))


def at(onset, before, after):
    return lambda step, *_: before if step < onset else after


def constant(value):
    return lambda *_: value


def lengths(mean, most=10_000):
    return lambda step, reward, rng: int(min(most, rng.gamma(8, mean(step) / 8) + 1))


def spread(rate):
    """Return a rate around which that of single prompts lies."""
    return lambda step, prompt: min(1, max(0, rate(step) + ((prompt * 7) % 11 - 5) / 20))


def noisy(value, size=0.02):
    """Return a series with noise that is the same in every run."""
    return lambda step: value(step) + size * math.sin(12.9898 * step + 78.233 * math.sin(step))


def epoch(step, place):
    return step * GROUPS + place


HALF = constant(0.5)
STEADY = noisy(HALF)
LEARNS = spread(line(0.3, 0.75))


def means(reward=STEADY, *, steps=80, **series):
    """Return rows of the means of steps. A double underscore stands for / in a name; ``reward`` may be None."""
    series = series if reward is None else series | {"reward": reward}
    return [
        {"step": step + 1, **{name.replace("__", "/"): series[name](step) for name in series}} for step in range(steps)
    ]


def read(tmp_path, rows):
    """Return a run and its series of steps as they are read from a file."""
    try:
        return open_run(jsonl(tmp_path / "run.jsonl", rows)), None
    except ScalarsOnlyError as error:
        return None, error.scalars
