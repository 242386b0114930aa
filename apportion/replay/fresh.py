"""Fresh prompts for rules that draw more of them in the middle of a batch."""

from __future__ import annotations

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.types import Counts, Mask


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
