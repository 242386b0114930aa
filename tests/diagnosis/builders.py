"""Small records, and simulated runs of which the truth is known."""

import numpy as np

from apportion.records import RunRecord


def record_of(rewards, prompt=None, step=None, *, tokens=None, predicted=None, visits=False):
    """Return a record of equal groups: ``rewards`` [N, G]; by default each of another prompt, at one step."""
    rewards = np.asarray(rewards, float)
    size, group = rewards.shape
    prompt = np.arange(size) if prompt is None else np.asarray(prompt)
    return RunRecord(
        name="made",
        source="test",
        ids=[str(q) for q in range(prompt.max() + 1)],
        texts=[None] * (prompt.max() + 1),
        step=np.zeros(size, np.int64) if step is None else np.asarray(step),
        prompt=prompt,
        predicted=None if predicted is None else np.asarray(predicted, float),
        first=group * np.arange(size + 1),
        reward=rewards.reshape(-1),
        tokens=None if tokens is None else np.asarray(tokens, float).reshape(-1),
        visits=visits,
    )


def run_of(rates, visits=6, group=8, batch=32, seed=0):
    """Return a run that visits prompts with these success ``rates`` [Q], or [V, Q], in shuffled epochs."""
    rng = np.random.default_rng(seed)
    rates = np.broadcast_to(rates, (visits, np.shape(rates)[-1]))
    prompt = np.concatenate([rng.permutation(rates.shape[1]) for _ in range(visits)])
    p = rates[np.repeat(np.arange(visits), rates.shape[1]), prompt]
    rewards = (rng.random((len(prompt), group)) < p[:, None]).astype(float)
    return record_of(rewards, prompt, np.arange(len(prompt)) // batch)
