"""What a rule got in a replay, prompt by prompt of each batch, beside an even split of the same rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apportion.types import Counts, Floats

MEASURES = ("rollouts", "tokens", "mixed", "hits", "dead", "variance", "signal")
"""What is measured of each prompt of a batch.

- rollouts: those that were drawn.
- tokens: those of their completions, nan if unknown.
- mixed: groups in the loss whose rewards differ, 0 or 1, or its expectation.
- hits: prompts with a correct rollout, 0 or 1, or its expectation; nan if rewards are not 0 or 1.
- dead: drawn rollouts that are in no such group.
- variance: RLOO's gradient variance from that many rollouts, 4 v / (n - 1), v the variance of the reward; nan under a
  rule without labels, or one that draws nothing for some prompts.
"""


@dataclass(frozen=True, eq=False)
class Cells:
    """M rows: the prompts of all batches of all seeds.

    Args:
        seed: the place of the seed, [M].
        batch: the place of the batch in the run, [M].
        prompt: the place of the prompt in the record, [M].
        group: the place in the record of the group that its outcomes come from, [M].
        asked: rollouts that were asked for, [M].
        first: rollouts of the first round, [M].
        rule: each of ``MEASURES`` under the rule, [M].
        even: each of them under an even split of the batch's rollouts over its prompts, [M]. It is in expectation.
        step: the recorded step of each batch, [B].
        prompts: Q.
    """

    seed: Counts
    batch: Counts
    prompt: Counts
    group: Counts
    asked: Counts
    first: Counts
    rule: Mapping[str, Floats]
    even: Mapping[str, Floats]
    step: Counts
    prompts: int

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return int(self.seed.max(initial=0)) + 1

    def total(self, measure: str, even: bool = False) -> float:
        """Return the sum over the run of a measure, mean over seeds."""
        return float((self.even if even else self.rule)[measure].sum() / self.seeds)

    def by_step(self, measure: str, even: bool = False) -> Floats:
        """Return the sum of a measure over each batch, [B], mean over seeds."""
        values = (self.even if even else self.rule)[measure]
        return np.asarray(np.bincount(self.batch, values, len(self.step)) / self.seeds)

    def by_prompt(self, measure: str, even: bool = False) -> Floats:
        """Return the sum of a measure over the run by seed and prompt, [S, Q]."""
        places = self.seed * self.prompts + self.prompt
        values = (self.even if even else self.rule)[measure]
        return np.asarray(np.bincount(places, values, self.seeds * self.prompts).reshape(self.seeds, self.prompts))

    def coverage(self, even: bool = False) -> float:
        """Return the expected number of distinct prompts with a mixed group, mean over seeds."""
        values = (self.even if even else self.rule)["mixed"]
        with np.errstate(divide="ignore"):
            logs = np.log1p(-np.clip(values, 0, 1))
        places = self.seed * self.prompts + self.prompt
        return float((1 - np.exp(np.bincount(places, logs, self.seeds * self.prompts))).sum() / self.seeds)

    @staticmethod
    def joined(parts: Sequence[Cells]) -> Cells:
        """Return the cells of several seeds as one, in their order."""

        def column(name: str) -> Counts:
            return np.concatenate([getattr(part, name) for part in parts])

        return Cells(
            seed=np.repeat(np.arange(len(parts)), [len(part.batch) for part in parts]),
            batch=column("batch"),
            prompt=column("prompt"),
            group=column("group"),
            asked=column("asked"),
            first=column("first"),
            rule={name: np.concatenate([part.rule[name] for part in parts]) for name in MEASURES},
            even={name: np.concatenate([part.even[name] for part in parts]) for name in MEASURES},
            step=parts[0].step,
            prompts=parts[0].prompts,
        )
