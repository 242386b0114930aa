"""A forecast in sentences and tables, for the screen."""

from __future__ import annotations

import math

from apportion.diagnosis.statements import span
from apportion.forecast.forecast import EpochCost, Forecast, Split
from apportion.replay.intervals import Spanned, share
from apportion.runs.text_table import text_table

NAMES = {"even": "each prompt once", "refilled": "as many mixed: refilled", "chosen": "as many mixed: chosen"}
ONE_ROLLOUT = (
    "One rollout a prompt shows the mean and nothing of the spread: the intervals have all that is possible at that "
    "mean, and the estimates in them are guesses. Two rollouts a prompt tell more than any number of prompts."
)
BEST = (
    "Last columns: signal of a rollout, over that with a known baseline. Best n (the least with 90% of the most; "
    "reinforce has a baseline from history): {}."
)
CHOSEN = "chosen: the half likeliest mixed by an epoch of {}, from the second epoch on; it changes the objective."


def counted(number: int, noun: str) -> str:
    """Return a number and its noun as text, in the singular or plural.

    >>> counted(1, "prompt"), counted(2000, "prompt")
    ('1 prompt', '2,000 prompts')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def dead_table(found: Forecast) -> str:
    """Return a line for each group size: dead groups, of which kinds, and the signal of a rollout."""
    rows = [
        [
            f"{dead.n}",
            span(Spanned(dead.value, dead.low, dead.high)) if dead.n > 1 else "100%",
            *map(share, (dead.all_right, dead.all_wrong)),
            *(f"{own[place]:.2f}" for own in found.signal.values()),
        ]
        for place, dead in enumerate(found.dead)
    ]
    header = ["n", "dead (zero variance)", "all right", "all wrong", *found.signal]
    return text_table(rows, header, align="r" * len(header))


def epoch_table(found: Forecast) -> str:
    """Return what an epoch costs, in the columns that are known."""
    shown = [each for each in found.epoch if each.choice != "even" or each.n in {4, found.group_size, 16}]
    known = [True, True, *(not math.isnan(getattr(shown[0], name)) for name in ("tokens", "hours", "cost"))]
    rows = [_cells(each) for each in shown]
    header = [f"epoch of {counted(found.prompts, 'prompt')}", "rollouts", "tokens", "hours", "cost"]
    kept = [[cell for cell, is_known in zip(row, known, strict=True) if is_known] for row in (header, *rows)]
    return text_table(kept[1:], kept[0])


def _cells(each: EpochCost) -> list[str]:
    value, low, high = each.rollouts
    ends = "" if low == high else f" [{low:,.0f}, {high:,.0f}]"
    amounts = [f"{each.tokens:,.0f}", f"{each.hours:,.1f}", f"{each.cost:,.2f}"]
    return [f"{NAMES[each.choice]}, n {each.n}", f"{value:,.0f}{ends}", *amounts]


def split_statement(found: Split) -> str:
    """Return in words which prompts get the rollouts under a rule, and its effects."""
    places = zip((found.low, found.middle, found.high), ("below 1/4", "between", "above 3/4"), strict=True)
    given = ", ".join(f"{count:.1f} at rates {where}" for count, where in places if not math.isnan(count))
    after = " after an epoch" if found.rule == "vip" else ""
    return (
        f"{found.rule}{after}: {given}; variance x{found.variance:.2f}, signal x{found.signal:.2f}, a right one in "
        f"x{found.hits:.2f} of the groups."
    )


def more_statement(found: Forecast) -> str:
    """Return how wide the widest interval is, and what would halve it."""
    widest = found.dead[-1]
    now = f"The widest interval, at n {widest.n}, is ±{50 * (widest.high - widest.low):.0f} points"
    if found.more is None:
        return f"{now}; even many more rollouts of each prompt would not surely halve it."
    more = found.more
    return f"{now}; {more.prompts:,} prompts x {more.rollouts} rollouts would make it ±{100 * more.half:.0f}."
