"""What a rule got in a replay, prompt by prompt of each batch, beside an even split of the same rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from apportion.replay.population import OutcomePopulation
from apportion.types import Counts, Floats

MEASURES = ("rollouts", "tokens", "mixed", "hits", "dead", "variance", "signal")
"""The measures of each prompt of a batch.

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

    @classmethod
    def of(
        cls,
        population: OutcomePopulation,
        places: Counts,
        batch: Counts,
        asked: Counts,
        first: Counts,
        got: Counts,
        labels: bool,
        drawn: Mapping[str, Floats],
    ) -> Self:
        """Return the cells of one seed, from its columns [M] for the groups at ``places``, batch by batch.

        ``labels`` is whether the rule reads rewards, and ``drawn`` what ``measures`` is told of its rollouts.
        """
        level = (np.bincount(batch, got) / np.bincount(batch))[batch]
        record = population.record
        return cls(
            seed=np.zeros(len(batch), np.int64),
            batch=batch,
            prompt=record.prompt[places],
            group=places,
            asked=asked,
            first=first,
            rule=measures(population, places, got, labels, drawn),
            even=measures(population, places, level, labels),
            step=record.step[places[np.flatnonzero(np.diff(batch, prepend=-1))]],
            prompts=len(record.ids),
        )

    @staticmethod
    def joined(parts: Sequence[Cells]) -> Cells:
        """Return the cells of several seeds as one, in their order."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("batch", "prompt", "group", "asked", "first")
        }
        sides: dict[str, Any] = {
            side: {name: np.concatenate([getattr(part, side)[name] for part in parts]) for name in MEASURES}
            for side in ("rule", "even")
        }
        seed = np.repeat(np.arange(len(parts)), [len(part.batch) for part in parts])
        return replace(parts[0], seed=seed, **columns, **sides)

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return int(self.seed.max(initial=0)) + 1

    def total(self, measure: str, even: bool = False) -> float:
        """Return a measure summed over the run, as the mean over seeds."""
        return float(self._values(measure, even).sum() / self.seeds)

    def by_step(self, measure: str, even: bool = False) -> Floats:
        """Return the sum of a measure over each batch, [B], mean over seeds."""
        return np.asarray(np.bincount(self.batch, self._values(measure, even), len(self.step)) / self.seeds)

    def by_prompt(self, measure: str, even: bool = False) -> Floats:
        """Return the sum of a measure over the run by seed and prompt, [S, Q]."""
        return self._by_prompt(self._values(measure, even))

    def coverage(self, even: bool = False) -> float:
        """Return the expected number of distinct prompts with a mixed group, mean over seeds."""
        with np.errstate(divide="ignore"):
            logs = np.log1p(-np.clip(self._values("mixed", even), 0, 1))
        return float((1 - np.exp(self._by_prompt(logs))).sum() / self.seeds)

    def _values(self, measure: str, even: bool) -> Floats:
        return (self.even if even else self.rule)[measure]

    def _by_prompt(self, values: Floats) -> Floats:
        places, size = self.seed * self.prompts + self.prompt, self.seeds * self.prompts
        return np.asarray(np.bincount(places, values, size).reshape(self.seeds, self.prompts))


def measures(
    population: OutcomePopulation,
    places: Counts,
    number: Floats | Counts,
    labels: bool = True,
    drawn: Mapping[str, Floats] | None = None,
) -> dict[str, Floats]:
    """Return each of ``MEASURES`` of ``number`` [M] rollouts of the groups at ``places`` [M].

    Mixed groups, hits and tokens are those of the ``drawn`` rollouts [M], or expectations if there are none of these.
    """
    nothing = np.full(len(places), np.nan)
    found = drawn or {
        "mixed": population.mixed(places, number),
        "hits": 1 - population.none_right(places, number) if population.verified else nothing,
        "tokens": number * population.tokens[places],
    }
    unknown = set() if population.verified else {"hits"}
    if not labels:  # its groups are rewarded by votes
        unknown |= {"variance", "signal"} if drawn else {"variance", "signal", "mixed", "dead"}
    elif drawn and not number.all():
        unknown |= {"variance"}
    return {
        **found,
        "rollouts": np.asarray(number, np.float64),
        "dead": number * (1 - found["mixed"]),
        "variance": population.gradient_variance(places, number),
        "signal": population.signal(places, number),
        **dict.fromkeys(unknown, nothing),
    }
