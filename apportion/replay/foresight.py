"""Replay a recorded run to a predictor: what does it believe about each group before it learns the outcome?

The batches are the steps of the run. If the record has visits in place of steps, each visit takes the prompts in a
random order, in batches of 128. Nothing after a batch enters its predictions.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from apportion.predictors import Predictor
from apportion.records.run_record import RunRecord
from apportion.types import Batch, Belief, Counts, Floats, Plan, Prompt, Rollout

BATCH = 128
MOST_GROUPS = 64_000
"""Larger runs are replayed and diagnosed on a random sample of their prompts with so many groups."""
BINS = 10
RIGHT, WRONG = Rollout(True), Rollout(False)


def batches_of(record: RunRecord, seed: int = 0, size: int = BATCH) -> list[Counts]:
    """Return the indices of the groups of each batch of the run, in its order.

    A step is a batch. If steps are visits, the batches have ``size`` prompts, in an order that ``seed`` decides.
    """
    steps = np.flatnonzero(np.r_[True, np.diff(record.step) != 0]) if len(record.step) else np.zeros(0, np.int64)
    groups = np.split(np.arange(len(record.step)), steps[1:])
    if not record.visits:
        return [each for each in groups if len(each)]
    rng, found = np.random.default_rng(seed), []
    for places in groups:
        order = places[rng.permutation(len(places))]
        found += [order[first : first + size] for first in range(0, len(order), size)]
    return found


def joined(batches: Sequence[Counts], least: int) -> list[Counts]:
    """Return ``batches``, with neighbours joined until each has ``least`` groups; the last may have fewer."""
    found: list[list[Counts]] = []
    for batch in batches:
        if found and sum(map(len, found[-1])) < least:
            found[-1].append(batch)
        else:
            found.append([batch])
    return [np.concatenate(each) for each in found]


def sample_of(record: RunRecord, groups: int, seed: int = 0) -> RunRecord:
    """Return the record of a random sample of its prompts with at most ``groups`` groups, or all of it.

    A sample has at least one prompt, and names no others.
    """
    if len(record.step) <= groups:
        return record
    visits = record.by_prompt()
    order = np.random.default_rng(seed).permutation(np.flatnonzero(visits))
    most = max(1, int(np.searchsorted(np.cumsum(visits[order]), groups, side="right")))
    taken = np.sort(order[:most])
    part = record.of_groups(np.isin(record.prompt, taken))
    return replace(
        part,
        ids=[record.ids[q] for q in taken],
        texts=[record.texts[q] for q in taken],
        prompt=np.searchsorted(taken, part.prompt),
    )


def foresee(predictor: Predictor, record: RunRecord, batches: Sequence[Counts]) -> Belief:
    """Return the belief of ``predictor`` about each group before its batch, [N]. Each group is in one of ``batches``.

    The predictor learns from each batch after it has predicted it. Raises ValueError if it counts right rollouts and
    the rewards are graded.
    """
    if predictor.needs.binary and not record.binary:
        raise ValueError(
            f"{predictor.name} must have rewards of 0 and 1, got graded ones in {record.name}; use empirical_bayes"
        )
    prompts, columns = record.prompts, np.full((3, len(record.step)), np.nan)
    predictor.prepare(prompts)
    for places in batches:
        some = [prompts[q] for q in record.prompt[places]]
        belief = predictor.predict(some)
        columns[:, places] = belief.alpha, belief.beta, belief.variance
        predictor.update(replace(finished(record, places, some), belief=belief))
    return Belief(*columns)


def shuffled(belief: Belief, batches: Sequence[Counts], seed: int = 0) -> Belief:
    """Return ``belief`` [N] permuted within each batch, as the predictor ``Shuffled`` would."""
    order = np.arange(len(belief))
    for updates, places in enumerate(batches):
        order[places] = places[np.random.default_rng([seed, updates]).permutation(len(places))]
    return Belief(belief.alpha[order], belief.beta[order], belief.variance[order])


def finished(record: RunRecord, places: Counts, prompts: Sequence[Prompt]) -> Batch:
    """Return the batch of the groups at ``places`` [P] with their recorded rewards, as verdicts if these are 0 or 1.

    Its belief is uniform.
    """
    if record.binary:
        counts = zip(record.totals[places].astype(np.int64).tolist(), record.trials[places].tolist(), strict=True)
        made = [[RIGHT] * right + [WRONG] * (trials - right) for right, trials in counts]
    else:
        groups = (record.reward[record.first[g] : record.first[g + 1]] for g in places.tolist())
        made = [[Rollout(reward=reward) for reward in group[~np.isnan(group)].tolist()] for group in groups]
    return Batch.start(prompts, Belief.uniform(len(places))).add(Plan(record.trials[places]), made)


def calibration_error(means: Floats, shares: Floats) -> float:
    """Return the mean distance between predicted and observed means in ten bins of the prediction, by their size.

    ``means`` and ``shares`` are [P], within [0, 1].
    """
    which = np.minimum((means * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(which, means - shares, BINS)).sum() / len(means))


def correlation(means: Floats, shares: Floats) -> float:
    """Return the correlation of predictions and shares, nan if all of one are equal."""
    if min(means.std(), shares.std()) <= 1e-9:
        return float("nan")
    return float(np.corrcoef(means, shares)[0, 1])
