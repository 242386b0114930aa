"""What trains on votes that stopped early: the error of the group's mean reward and of its gradient, by simulation.

A prompt has K answers with probabilities q. Votes give a label a*, and rollout i gets the reward 1[a_i = a*]. A fresh
rollout would agree with probability q(a*). Given the label, the gradient of q(a*) with respect to the logits of q is
q(a*) (e(a*) - q). Both are compared with what the retained rollouts give, averaged over many votes on the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from apportion.stopping import BayesianSPRT, Calibrated, Fixed, Rule, count_votes
from apportion.types import Counts, Floats
from benchmarks.evidence.cell import Values

PROMPTS, REPEATS, ANSWERS, M, N = 40, 400, 6, 64, 16
WAVE = 4
CONCENTRATION = 0.4
"""Of the symmetric Dirichlet distribution of q."""
RULES: Mapping[str, Rule] = {"ttrl": Fixed(), "optpo": BayesianSPRT(N), "calibrated": Calibrated(0.05)}


def bias(seed: int = 0) -> Values:
    """Return, by rule and by what is retained, the bias of the mean reward and of the gradient, with 95% half widths.

    Half widths are over prompts. Differences to the first N are paired by prompt. ``gradient`` is the bias along the
    true gradient, over the length of the true one. A group of "fresh" rollouts is drawn after the vote. "sequential" is
    RLOO over the votes of earlier waves and of the own one, summed and divided by the mean number of votes of the
    prompt.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(PROMPTS):
        q = rng.dirichlet([CONCENTRATION] * ANSWERS)
        codes = rng.choice(ANSWERS, size=(REPEATS, M), p=q)
        fresh = rng.choice(ANSWERS, size=(REPEATS, N), p=q)
        votes = count_votes(codes, ANSWERS)
        for name, rule in RULES.items():
            ends, labels = _stops(votes, rule)
            groups = {
                "first": _group(codes[:, :N], np.full(REPEATS, N), labels, q),
                "all": _group(codes, ends, labels, q),
                "sequential": _sequential(codes, ends, labels, q),
                "fresh": _group(fresh, np.full(REPEATS, N), labels, q),
            }
            for retained, (mean, gradient) in groups.items():
                target = q[labels][:, None] * (np.eye(ANSWERS)[labels] - q)
                true, mine = target.mean(0), gradient.mean(0)
                own = found.setdefault(f"{name}, {retained}", {"reward": [], "gradient": [], "samples": []})
                own["reward"].append(float((mean - q[labels]).mean()))
                own["gradient"].append(float((mine - true) @ true / max(true @ true, 1e-12)))
                own["samples"].append(float(ends.mean()))
    for name, own in found.items():
        first = found[f"{name.split(',')[0]}, first"]
        own["reward_less_first"] = np.subtract(own["reward"], first["reward"]).tolist()
        own["gradient_less_first"] = np.subtract(own["gradient"], first["gradient"]).tolist()
    return {name: {key: _interval(values) for key, values in own.items()} for name, own in found.items()}


def _interval(values: list[float]) -> list[float]:
    return [float(np.mean(values)), float(1.96 * np.std(values, ddof=1) / np.sqrt(len(values)))]


def _stops(votes: Counts, rule: Rule) -> tuple[Counts, Counts]:
    """Return the samples and the label of each stream of ``votes`` [R, M, K], asked after every wave from N on."""
    taken = np.arange(1, M + 1)
    stopped = rule.stops(votes, M) & (taken >= N) & (taken % WAVE == 0) | (taken == M)
    ends = stopped.argmax(axis=-1) + 1
    return ends, votes[np.arange(len(votes)), ends - 1].argmax(axis=-1)


def _group(codes: Counts, ends: Counts, labels: Counts, q: Floats) -> tuple[Floats, Floats]:
    """Return the mean reward [R] and the RLOO gradient [R, K], a mean over the first ``ends`` rollouts."""
    kept = np.arange(codes.shape[1]) < ends[:, None]
    rewards = (codes == labels[:, None]) * kept
    total = rewards.sum(axis=-1)
    advantages = (rewards - (total[:, None] - rewards) / (ends[:, None] - 1)) * kept
    return total / ends, _gradient(advantages, codes, q) / ends[:, None]


def _sequential(codes: Counts, ends: Counts, labels: Counts, q: Floats) -> tuple[Floats, Floats]:
    """Return the same with baselines of waves so far, over the mean number of votes instead of each vote's own."""
    places = np.arange(codes.shape[1])
    kept = places < ends[:, None]
    rewards = (codes == labels[:, None]) * kept
    so_far = np.minimum((np.maximum(places, N - 1) // WAVE + 1) * WAVE, codes.shape[1])
    sums = np.take_along_axis(rewards.cumsum(axis=-1), np.broadcast_to(so_far - 1, codes.shape), axis=-1)
    advantages = (rewards - (sums - rewards) / (so_far - 1)) * kept
    mean = ends.mean()
    return rewards.sum(axis=-1) / mean, _gradient(advantages, codes, q) / mean


def _gradient(advantages: Floats, codes: Counts, q: Floats) -> Floats:
    """Return the sum over rollouts of advantage times (e(answer) - q), [R, K]."""
    by_answer = np.stack([(advantages * (codes == answer)).sum(axis=-1) for answer in range(ANSWERS)], axis=-1)
    return by_answer - advantages.sum(axis=-1)[:, None] * q
