"""Tests of HORA's evidence: its rivals deal what they say, and its hits are those of whole batches."""

import numpy as np

from apportion import HORA, Prompt, Rollout, collect
from benchmarks.evidence.hora_hits_measured import drawn, metrics


def test_hits_are_what_whole_batches_find():
    success, rng = np.array([0.02, 0.1, 0.1, 0.3, 0.6, 0.97]), np.random.default_rng(1)
    prompts, rule = [Prompt(str(q)) for q in range(6)], HORA(pre_rollouts=3, rollouts_per_prompt=6, high=12)

    def sample(prompts, counts):
        return [[Rollout(bool(c)) for c in rng.random(n) < p] for n, p in zip(counts, success, strict=True)]

    whole = np.array([(collect(rule, prompts, sample).successes > 0).mean() for _ in range(500)])
    expected = metrics(success, *drawn(success, rule, 500, seed=2))[0]
    assert abs(expected - whole.mean()) < 5 * whole.std() / np.sqrt(500)
