"""Small records, and simulated runs of which the truth is known."""

import numpy as np

from apportion.records import RunRecord


def record_of(rewards, prompt=None, step=None, **columns):
    """Return a record of equal groups: ``rewards`` [N, G]; by default each of another prompt, at one step."""
    groups, size = np.shape(rewards)
    prompt = np.arange(groups) if prompt is None else np.asarray(prompt)
    number = prompt.max() + 1
    made = {"name": "made", "source": "test", "ids": [str(q) for q in range(number)], "texts": [None] * number}
    made |= {"step": np.zeros(groups, np.int64) if step is None else np.asarray(step), "prompt": prompt}
    made |= {"first": size * np.arange(groups + 1), "reward": np.ravel(rewards).astype(float)}
    return RunRecord(**made | columns)


def run_of(rates, visits=6, group=8, batch=32, seed=0):
    """Return a run that visits prompts with these success ``rates`` [Q], or [V, Q], in shuffled epochs."""
    rng = np.random.default_rng(seed)
    rates = np.broadcast_to(rates, (visits, np.shape(rates)[-1]))
    prompt = np.concatenate([rng.permutation(rates.shape[1]) for _ in range(visits)])
    p = rates[np.repeat(np.arange(visits), rates.shape[1]), prompt]
    rewards = (rng.random((len(prompt), group)) < p[:, None]).astype(float)
    return record_of(rewards, prompt, np.arange(len(prompt)) // batch)
