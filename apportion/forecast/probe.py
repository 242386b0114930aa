"""The sample of prompts in a recorded run, an evaluation or a table: the first group of each prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from apportion.forecast.rates import MOST_TRIALS, RateSample
from apportion.records.doubts import ALONE
from apportion.records.run_record import RunRecord
from apportion.scheduler.outcomes import are_verdicts


@dataclass(frozen=True, eq=False)
class Probe:
    """A sample of ``prompts`` prompts with ``rollouts`` rollouts in all.

    ``tokens`` is the mean length of a completion, nan if unknown, and ``doubts`` are what may be read otherwise.
    """

    name: str
    sample: RateSample
    rollouts: int
    tokens: float = np.nan
    doubts: tuple[str, ...] = ()

    @property
    def prompts(self) -> int:
        """Prompts with a rollout."""
        return int(self.sample.prompts.sum())


def probe_of(record: RunRecord) -> Probe:
    """Return the first group of each prompt of ``record``. Later groups are of a policy that was trained on the prompt.

    Rewards must be 0 and 1, or -1 and 1, or one rate within 0 and 1 for each prompt, of an unknown number of rollouts.
    Such a rate counts as one of 64. Raises ValueError for other rewards, and without any.

    >>> from apportion.records import record_of_visits
    >>> probe_of(record_of_visits([[0, 1], [4, 8]], 8, ["a", "b"])).sample.successes.tolist()
    [0, 4]
    """
    first = record.of_groups(record.visit == 0)
    doubts, graded = list(record.doubts), not are_verdicts(np.unique(first.reward))
    if len(first.step) < len(record.step):
        doubts.append(
            f"{len(record.step):,} groups are of {len(first.step):,} prompts: the first of each counts, because the "
            "policy may have been trained between them"
        )
    rates = graded and first.trials.max() <= 1 and 0 <= np.nanmin(first.reward) <= np.nanmax(first.reward) <= 1
    if graded and not rates:
        raise ValueError(
            f"a forecast needs rewards of 0 and 1, or one pass rate a prompt, got graded rewards in {record.name}; "
            "--reward NAME reads another column"
        )
    if rates:
        doubts = [doubt for doubt in doubts if not doubt.startswith(ALONE)]
        doubts.append(f"pass rates without a number of rollouts count as of {MOST_TRIALS}: --column trials=COLUMN")
        trials, right = MOST_TRIALS * first.trials, np.rint(MOST_TRIALS * first.totals)
    else:
        trials, right = first.trials, replace(first, reward=np.where(first.reward < 0, 0, first.reward)).totals
    lengths = first.tokens[~np.isnan(first.tokens)]
    return Probe(
        name=f"{record.name} ({record.source})",
        sample=RateSample.of(right.astype(np.int64), trials),
        rollouts=int(first.trials.sum()),
        tokens=float(lengths.mean()) if len(lengths) else np.nan,
        doubts=tuple(doubts),
    )
