"""What other rules would have done with the steps of a run under way, each decided by what was known before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from apportion.allocators.vip import gradient_noise
from apportion.diagnosis.walks import vip_counts
from apportion.predictors import EmpiricalBayes, Predictor
from apportion.selection.mixed import mixed_probability
from apportion.types import Batch, Belief, Floats, Plan, Prompt, Rollout

WINDOW = 50
"""Steps over which ratios are taken, because those of one step of a few prompts are noise."""


@dataclass
class RolloutMeter:
    """Measures each step by the belief from earlier steps. The belief then learns from the step.

    Args:
        predictor: of the success of prompts; the default is the one that VIP and the selections have.

    >>> meter = RolloutMeter()
    >>> [round(value, 2) for value in meter.add([Prompt("a"), Prompt("b")], [[0, 1, 1], [1, 1, 1]]).values()][:2]
    [0.5, 0.5]
    """

    predictor: Predictor = field(default_factory=EmpiricalBayes)
    _sums: deque[Floats] = field(default_factory=lambda: deque(maxlen=WINDOW), repr=False)

    def add(self, prompts: Sequence[Prompt], rewards: Sequence[Sequence[float]]) -> dict[str, float]:
        """Return the metrics of a step with ``rewards`` [P][G] of ``prompts`` [P], without rewards that are not finite.

        - ``mixed``: the share of mixed groups. ``mixed_expected``: what the belief expected of it.
        - ``dead_rollouts``: the share of rollouts in dead groups.
        - ``mixed_chosen``: the share of mixed groups in the half of the prompts with the largest believed P(mixed), or
          variance if rewards are graded. ``saved_chosen``: the rollouts that such a choice from twice as many prompts
          would have saved at equal mixed groups.
        - ``variance_vip``: RLOO's gradient variance under VIP's counts over that under the recorded ones, for a loss
          that is a mean over prompts. ``saved_vip``: the rollouts saved at equal variance.
        - ``signal_vip``: what the rollouts teach under VIP's counts over the same under the recorded ones, for a loss
          that weighs rollouts or tokens equally.

        All but the first three are ratios over the latest 50 steps, and left out where nothing is known.
        """
        known = [[float(each) for each in own if math.isfinite(each)] for own in rewards]
        kept = [place for place, own in enumerate(known) if len(own) >= 2]
        if not kept:
            return {}
        groups, asked = [np.array(known[place]) for place in kept], [prompts[place] for place in kept]
        trials = np.array([len(group) for group in groups])
        variance = np.array([group.var(ddof=1) for group in groups])
        binary = all(bool(np.isin(group, (0, 1)).all()) for group in groups)
        belief, size = self.predictor.predict(asked), max(2, round(float(trials.mean())))
        batch = _batch(asked, groups, belief, binary)
        mixed = batch.spread > 0
        scores = mixed_probability(belief, size) if binary else belief.variance
        best = np.argsort(-scores, kind="stable")[: len(groups) // 2]
        counts = vip_counts(belief.variance, trials)
        counts = trials if counts is None else counts
        columns = [len(groups), mixed.sum(), trials.sum(), len(best), mixed[best].sum(), trials[best].sum()]
        columns += [gradient_noise(variance, number).sum() for number in (counts, trials)]
        columns += [(number * variance).sum() for number in (counts, trials)]
        self._sums.append(np.array(columns, np.float64))
        self.predictor.update(batch)
        found = {"mixed": float(mixed.mean()), "dead_rollouts": float(trials[~mixed].sum() / trials.sum())}
        return found | ({"mixed_expected": float(scores.mean())} if binary else {}) | self._ratios()

    def _ratios(self) -> dict[str, float]:
        sums = np.sum(self._sums, axis=0).tolist()
        groups, mixed, rollouts, half, chosen, spent, planned, recorded, taught, teaches = sums
        found: dict[str, float] = {}
        if half:
            found["mixed_chosen"] = chosen / half
        if chosen:
            found["saved_chosen"] = 1 - (mixed / rollouts) / (chosen / spent)
        if recorded:
            ratio, size = planned / recorded, rollouts / groups
            found |= {"variance_vip": ratio, "saved_vip": 1 - size / (1 + (size - 1) / ratio)}
            found["signal_vip"] = taught / teaches
        return found


def _batch(prompts: Sequence[Prompt], groups: Sequence[Floats], belief: Belief, binary: bool) -> Batch:
    rollouts = [
        [Rollout(bool(reward)) if binary else Rollout(reward=reward) for reward in group.tolist()] for group in groups
    ]
    return Batch.start(prompts, belief).add(Plan(np.array([len(group) for group in groups])), rollouts)
