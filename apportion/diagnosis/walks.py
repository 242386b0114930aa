"""Walk a rule through a recorded run: it decides before each batch, and the recorded outcome of its choice counts.

Each batch offers the rule the groups that were recorded. It chooses among them by what it knew before, and learns only
what it chose. The outcome of a chosen group is the recorded one, so a success rate need not be estimated, and no later
outcome enters a decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from apportion.allocators.vip import gradient_noise, minimise_noise
from apportion.predictors import EmpiricalBayes, Predictor
from apportion.records.run_record import RunRecord
from apportion.replay.foresight import batches_of, finished, foresee, joined
from apportion.selection.mixed import mixed_probability
from apportion.types import Counts, Floats, Mask

CANDIDATES = 256
"""Groups in a batch if steps are visits. Half of them are chosen."""
LEAST_CANDIDATES, MOST_BATCHES = 8, 1_000
EXPLORE = 0.1
RETIRED_FROM, RETEST_AFTER = 0.9, 100
"""Settings of the rule ``retire``: a prompt rests after a group of this mean reward, for so many choices."""
LOW, MOST = 3, 32


def walk_batches(record: RunRecord) -> list[Counts]:
    """Return the batches that rules choose from: real steps, joined until they have eight groups, 1,000 in all."""
    least = max(LEAST_CANDIDATES, math.ceil(len(record.step) / MOST_BATCHES))
    return joined(batches_of(record, size=CANDIDATES), least)


def choose_mixed(record: RunRecord, batches: Sequence[Counts], make: Callable[[], Predictor] = EmpiricalBayes) -> Mask:
    """Return which groups [N] are chosen if each batch takes its better half by the believed P(mixed).

    A tenth of the places is for the prompts that were not chosen the longest, as in the rule ``mixed``. With graded
    rewards the believed variance takes the place of P(mixed). Ties are broken at random.
    """
    prompts, rng, predictor = record.prompts, np.random.default_rng(0), make()
    predictor.prepare(prompts)
    size = group_size(record)
    last, chosen = np.full(len(prompts), -1), np.zeros(len(record.step), bool)
    for clock, places in enumerate(batches):
        belief = predictor.predict([prompts[q] for q in record.prompt[places]])
        scores = mixed_probability(belief, size) if record.binary else belief.variance
        taken = places[best_half(scores, last[record.prompt[places]], rng)]
        chosen[taken], last[record.prompt[taken]] = True, clock
        predictor.update(finished(record, taken, [prompts[q] for q in record.prompt[taken]]))
    return chosen


def group_size(record: RunRecord) -> int:
    """Return the mean group size in rewards, rounded, at least 2. Groups without rewards do not count."""
    return max(2, round(float(record.trials[record.trials > 0].mean()))) if record.trials.any() else 2


def best_half(scores: Floats, last: Counts, rng: np.random.Generator) -> Counts:
    """Return the indices of half of the candidates: the best ``scores``, and a tenth by the smallest ``last``."""
    half, draws = len(scores) // 2, rng.random(len(scores))
    explored = min(half, math.ceil(EXPLORE * half))
    ranking = np.lexsort((draws, -scores))
    best, rest = ranking[: half - explored], ranking[half - explored :]
    return np.append(best, rest[np.lexsort((draws[rest], last[rest]))[:explored]])


def choose_unmastered(record: RunRecord, batches: Sequence[Counts]) -> Mask:
    """Return which groups [N] are chosen if a prompt rests for 100 batches after a group with a mean of .9 or more."""
    until, chosen = np.full(len(record.ids), -1), np.zeros(len(record.step), bool)
    for clock, places in enumerate(batches):
        taken = places[until[record.prompt[places]] <= clock]
        chosen[taken] = True
        mastered = np.nan_to_num(record.shares[taken]) >= RETIRED_FROM
        until[record.prompt[taken]] = np.where(mastered, clock + RETEST_AFTER, -1)
    return chosen


def vip_counts(variance: Floats, trials: Counts) -> Counts | None:
    """Return VIP's split of the rollouts ``trials`` [P] by believed ``variance`` [P]; None for too few rollouts."""
    if not len(trials) or LOW * len(trials) > trials.sum():
        return None
    return minimise_noise(variance, int(trials.sum()), "rloo", LOW, max(MOST, int(trials.max())))


def vip_variances(record: RunRecord, batches: Sequence[Counts]) -> tuple[Floats, Floats]:
    """Return RLOO's variance [N] under VIP's counts by the belief before each batch, and under the recorded counts.

    Both are unbiased if the recorded counts do not depend on outcomes: the variance of one reward is estimated by the
    group's own sample variance, which no decision has seen. Groups of fewer than two rewards count as 0 in both, as do
    batches with fewer than three rewards for each group.
    """
    belief = foresee(EmpiricalBayes(), record, batches)
    planned, recorded = np.zeros(len(record.step)), np.zeros(len(record.step))
    for places in batches:
        some = places[record.trials[places] >= 2]
        trials = record.trials[some]
        if (counts := vip_counts(belief.variance[some], trials)) is not None:
            unbiased = record.variances[some] * trials / (trials - 1)
            planned[some], recorded[some] = gradient_noise(unbiased, counts), gradient_noise(unbiased, trials)
    return planned, recorded
