"""The batches of a recorded run: which of its groups were sampled together."""

from __future__ import annotations

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.types import Counts, Mask

BATCH = 128
"""Prompts in a batch of a run whose batches are unknown."""


def schedule(record: RunRecord, batch: int = BATCH, seed: int = 0) -> list[Counts]:
    """Return the places of the groups of each batch, in order.

    The batches are the recorded steps. If only the visits of each prompt are known, each visit is one epoch in a random
    order by ``seed``, cut into batches of ``batch`` prompts.

    >>> from apportion.records import record_of_visits
    >>> [places.tolist() for places in schedule(record_of_visits([[1, 2], [3], [0]], 8, ["a", "b", "c"]), batch=2)]
    [[2, 0], [1], [3]]
    """
    ends = np.flatnonzero(np.diff(record.step)) + 1
    steps = np.split(np.arange(len(record.step)), ends) if len(record.step) else []
    if not record.visits:
        return steps
    rng = np.random.default_rng(seed)
    orders = [places[rng.permutation(len(places))] for places in steps]
    return [order[first : first + batch] for order in orders for first in range(0, len(order), batch)]


def fresh_order(record: RunRecord, groups: Counts, usable: Mask, count: int) -> Counts:
    """Return the places of up to ``count`` other groups from which fresh prompts are drawn for the batch ``groups``.

    These are the groups that follow in time, and then the earlier ones, the latest first. If only visits are known they
    are the other groups of the same visit, in a fixed order after the last group of the batch, and then those of later
    and of earlier visits. A prompt comes once, none of the batch, and none without a ``usable`` [N] group.
    """
    order = _by_distance(record, groups)
    order = order[usable[order]]
    reach = 2 * (count + len(groups))
    while True:
        near = order[:reach]
        near = near[~np.isin(record.prompt[near], record.prompt[groups])]
        found = near[np.sort(np.unique(record.prompt[near], return_index=True)[1])]
        if len(found) >= count or reach >= len(order):
            return found[:count]
        reach *= 2


def _by_distance(record: RunRecord, groups: Counts) -> Counts:
    last, first = int(groups.max()), int(groups.min())
    if not record.visits:
        return np.r_[np.arange(last + 1, len(record.step)), np.arange(first - 1, -1, -1)]
    visit = record.step[last]
    begin, end = np.searchsorted(record.step, visit), np.searchsorted(record.step, visit, side="right")
    at = int(groups[-1]) + 1
    return np.r_[at:end, begin:at, end : len(record.step), np.arange(begin - 1, -1, -1)]
