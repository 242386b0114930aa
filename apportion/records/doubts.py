"""What a log leaves open, and the figures under the other reading.

A doubt is one line: what was found, how it was read, the figure under the other reading, and the flag that chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from apportion.records.keys import numbered, places_of
from apportion.records.run_record import PER_GROUP, RunRecord
from apportion.types import Counts, Floats, Mask

SPOILT = "no figure here is that of the run"
"""The words of a doubt which says that the rows are not the rollouts of the run."""
MOST_TRIED = 2_000
"""Largest number of groups whose answers are compared."""
LEAST_MIXED = 16
"""Least number of mixed groups that can tell whether each rollout is there several times."""
LEAST_ROLLOUTS = 8
"""Least number of rollouts for a statement about all rewards."""
SEVERAL_TIMES = 2
ALONE = "no prompt has two rollouts in a step"
USUAL_SHARE, LEAST_SHARE = 0.8, 0.5
"""The share of groups with the usual size, from which on other sizes are reported: in general, and if all are
multiples."""


def doubts_of(
    record: RunRecord,
    *,
    other_rewards: Mapping[str, Floats] = {},
    reward: str = "reward",
    lists: Mapping[str, int] = {},
    piece: int = 0,
) -> list[str]:
    """Return the doubts about how a run was read.

    ``other_rewards`` are further columns that may be the reward [R], beside that called ``reward``. ``lists`` has the
    usual length of columns of lists that nobody read. Rows of groups come ``piece`` at a time, if that is not 0.
    """
    found, sizes = [], np.diff(record.first)
    for name, values in other_rewards.items():
        if not np.array_equal(values, record.reward, equal_nan=True) and not np.isnan(values).all():
            other = replace(record, reward=values)
            found.append(
                f"the reward is {reward} ({_dead(record)} of the groups dead); by {name} {_dead(other)} would be dead; "
                f"--reward {name} reads that"
            )
    if record.source == "rollout log":
        return found
    usual = np.median(sizes)
    if piece:
        found.append(
            f"rows of a prompt come {piece} at a time, {usual // piece:g} times in a step: one group of {int(usual)}; "
            f"if a prompt was drawn several times, {_in_groups_of(record, piece)}"
        )
    else:
        found += _sizes_in_doubt(record, sizes)
    if (times := _copies(record)) > 1:
        found.append(f"every rollout of every group is there {times} times: remove the copies, or the second log")
    for name, length in lists.items():
        if length > usual:
            found.append(
                f"{name} holds {length} values where groups have {usual:g} rows: one verdict for {length}, or a "
                f"selection of the rollouts, and {SPOILT}; give a row to each rollout"
            )
    return [*found, *filter(None, [gold_answers(record)])]


def _in_groups_of(record: RunRecord, size: int) -> str:
    """Return the text for groups read in pieces of ``size`` rollouts, and the share of pieces that would be dead."""
    sizes = np.diff(record.first)
    times = -(-sizes // size)
    of = np.repeat(np.arange(len(sizes)), times)
    begins = record.first[of] + size * places_of(of)
    columns = {name: getattr(record, name)[of] for name in PER_GROUP}
    other = replace(record, first=np.r_[begins, len(record.reward)], **columns)
    return f"--column group={size} makes groups of {size}, and {_dead(other)} would be dead in place of {_dead(record)}"


def _sizes_in_doubt(record: RunRecord, sizes: Counts) -> list[str]:
    if not len(sizes := sizes[sizes > 0]):
        return []
    usual, often = max(zip(*np.unique(sizes, return_counts=True), strict=True), key=lambda each: each[1])
    large = (sizes >= SEVERAL_TIMES * usual) & (sizes % usual == 0)
    if usual == 1 and often == len(sizes):
        steps = "; --column step= makes one step of all" if len(record.step) > len(record.ids) else ""
        return [
            f"{ALONE}, so no group can be compared; name the column of the prompt by --column id=COLUMN, if there is "
            f"one{steps}"
        ]
    if usual == 1 and often > 0.1 * len(sizes):
        return [f"{often:,} of {len(sizes):,} groups have one rollout: is this the whole run?"]
    if large.any() and often >= (LEAST_SHARE if not (sizes % usual).any() else USUAL_SHARE) * len(sizes):
        return [
            f"{int(large.sum()):,} groups have up to {int(sizes.max())} rollouts where most have {int(usual)}: several "
            f"prompts of one text, or several groups of one prompt? {_in_groups_of(record, int(usual))}"
        ]
    return []


def parts_in_doubt(record: RunRecord) -> list[str]:
    """Return the doubt for a run whose lists were read as groups, if prompts have several lists in a step."""
    sizes = np.unique(np.diff(record.first))
    lists = np.bincount(numbered(record.step, record.prompt)[0])
    if len(sizes) > 1 or (lists > 1).mean() < USUAL_SHARE:
        return []
    return [
        f"each list of {sizes[0]} values is a group, and prompts have {np.median(lists):g} of them in a step: if the "
        "values are parts of the reward of one rollout, give each part a column"
    ]


def _copies(record: RunRecord) -> int:
    """Return how often each rollout is repeated, judged by reward, tokens and answer; 1 if too few groups can tell.

    Groups with as many right as wrong rollouts could not, because a selection makes such.
    """
    if not record.ordered:
        return 1
    part = record.of_groups(np.flatnonzero(record.mixed)[:MOST_TRIED])
    codes = (np.unique(values, return_inverse=True)[1] for values in (part.reward, part.tokens, part.answer))
    code, heads = numbered(part.group, *codes)
    counts, of = np.bincount(code), part.group[heads]
    uneven = np.bincount(of, minlength=1) > 2
    uneven[of[1:][(np.diff(counts) != 0) & (np.diff(of) == 0)]] = True
    return int(np.gcd.reduce(counts)) if uneven.sum() >= LEAST_MIXED else 1


def gold_answers(record: RunRecord) -> str:
    """Return the doubt if ``answer`` seems to be the known answer of the problem, and "" otherwise.

    Right and wrong rollouts of a prompt cannot have the same answer. It is no sample's answer if they have in most
    groups with both.
    """
    if not (record.answer >= 0).any() or not record.mixed.any():
        return ""
    found = np.flatnonzero(record.mixed)
    part = record.of_groups(found[:: max(1, len(found) // MOST_TRIED)])
    of = part.group
    known = (part.answer >= 0) & ~np.isnan(part.reward)
    of, answers, better = of[known], part.answer[known], (part.reward > part.shares[of])[known]
    pair = numbered(of, answers)[0]
    both = np.bincount(pair[better], minlength=pair.max(initial=-1) + 1) > 0
    both &= np.bincount(pair[~better], minlength=len(both)) > 0
    groups, merged = len(np.unique(of)), len(np.unique(of[both[pair]]))
    if not groups or merged <= groups / 2:
        return ""
    return (
        f"answer is no sample's answer, because right and wrong rollouts have the same one in {merged:,} of {groups:,} "
        "groups: no votes; name the samples' answers by --column answer=COLUMN"
    )


def dead_but_trained(record: RunRecord, taught: Mask) -> list[str]:
    """Return the doubt for dead groups whose logged advantages are not all 0. ``taught`` [N] marks those groups."""
    if not (record.dead & taught).any():
        return []
    counted, both = (record.dead | record.mixed).sum(), (record.dead & taught).sum()
    return [
        f"{both:,} of {record.dead.sum():,} dead groups trained with advantages other than 0, because of a baseline or "
        f"of parts of the reward that differ; here they are called dead, and without them "
        f"{(record.dead & ~taught).sum() / counted:.0%} of the groups would be"
    ]


def two_valued(reward: Floats) -> tuple[float, float] | None:
    """Return the two values of rewards [R] if there are exactly two, other than 0 and 1; else None."""
    known = np.unique(reward[~np.isnan(reward)])
    if len(known) != 2 or set(known.tolist()) <= {0.0, 1.0} or np.isfinite(reward).sum() < LEAST_ROLLOUTS:
        return None
    return float(known[0]), float(known[1])


def _dead(record: RunRecord) -> str:
    counted = record.dead | record.mixed
    return f"{record.dead.sum() / counted.sum():.0%}" if counted.any() else "none"
