"""What trains on votes that stopped early: the error of the group's mean reward, by simulation.

A prompt has K answers with probabilities q. Votes give a label a*, and rollout i gets the reward 1[a_i = a*]. A fresh
rollout would agree with probability q(a*). It is compared with the mean reward of the rollouts that are retained,
averaged over many votes on the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from apportion.stopping import BayesianSPRT, Calibrated, Rule, count_votes
from benchmarks.evidence.learning import with_half_width

PROMPTS, REPEATS, ANSWERS, M, N = 40, 400, 6, 64, 16
WAVE = 4
CONCENTRATION = 0.4
"""Of the symmetric Dirichlet distribution of q."""
RULES: Mapping[str, Rule] = {"optpo": BayesianSPRT(N), "calibrated": Calibrated(0.05)}


def bias(prompts=PROMPTS):
    """Return, by rule, the mean reward of all votes less that of the first N, paired by prompt, with 95% half widths.

    The rate of agreement of a fresh rollout is the same for both, so the difference is one of their biases.
    """
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(prompts):
        q = rng.dirichlet([CONCENTRATION] * ANSWERS)
        codes = rng.choice(ANSWERS, size=(REPEATS, M), p=q)
        votes = count_votes(codes, ANSWERS)
        for name, rule in RULES.items():
            ends, labels = _stops(votes, rule)
            right = (codes == labels[:, None]).cumsum(axis=1)
            rows = np.arange(REPEATS)
            found[name].append(float((right[rows, ends - 1] / ends - right[:, N - 1] / N).mean()))
    return {f"{name}, all": {"reward_less_first": with_half_width(own)} for name, own in found.items()}


def _stops(votes, rule):
    """Return the samples and the label of each stream of ``votes`` [R, M, K], asked after every wave from N on."""
    taken = np.arange(1, M + 1)
    stopped = rule.stops(votes, M) & (taken >= N) & (taken % WAVE == 0) | (taken == M)
    ends = stopped.argmax(axis=-1) + 1
    return ends, votes[np.arange(len(votes)), ends - 1].argmax(axis=-1)
