"""Recorded runs for the tests of replay."""

import numpy as np

from apportion.records import record_of_visits
from tests.diagnosis.builders import record_of


def made_run(
    steps=6, batch=8, prompts=24, size=160, seed=0, graded=False, answers=True, norms=True, tokens=True, ordered=True
):
    """Return a run of ``steps`` batches in which every prompt keeps its success rate."""
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([rng.permutation(prompts)[:batch] for _ in range(steps)])
    groups, rate = len(chosen), rng.beta(0.7, 0.7, prompts)
    number = groups * size
    of = np.repeat(chosen, size)
    right = rng.random(number) < rate[of]
    return record_of(
        (np.round(rng.random(number), 1) if graded else right).reshape(groups, size),
        chosen,
        np.repeat(np.arange(steps), batch),
        ids=[f"prompt {q}" for q in range(prompts)],
        texts=[f"question {q}" for q in range(prompts)],
        tokens=rng.integers(5, 50, number).astype(float) if tokens else None,
        score_norm=rng.random(number) + 0.5 if norms else None,
        answer=np.where(right, 0, rng.integers(1, 4, number)) if answers else None,
        ordered=ordered,
    )


def visits_of(counts):
    """Return the record of the visits of each prompt, with so many right ones of 8 rollouts."""
    return record_of_visits(counts, 8, [str(q) for q in range(len(counts))])
