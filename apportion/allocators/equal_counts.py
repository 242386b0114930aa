"""Whether a rule can give the prompts of a batch unequal numbers of rollouts, found by computing its plans.

A rule is uniform under some settings: its bounds leave no room in the budget, or the budget is so small that no outcome
of the first rollouts outweighs one more rollout of another prompt (HORA with 2, 3 or 4 rollouts). No rule declares it.
Stand-in prompts of two kinds play the outcomes, and what becomes of them is compared.
"""

import copy
import logging
import time
from collections.abc import Iterator
from itertools import product, takewhile

import numpy as np

from apportion.allocators.base import Allocator
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.checks import check_object
from apportion.predictors import UniformPrior
from apportion.types import Batch, Belief, Counts, Mask, Prompt, Rollout

logger = logging.getLogger(__name__)

MOST_PLANS, MOST_SECONDS = 2_000, 10.0
"""Plans to compare, and their time. If all are equal so far and there are more, nothing is claimed."""

STAND_INS = 4
"""Prompts in a batch of stand-ins: halves of two kinds, and one against the rest."""

MEANS = (0.001, 0.5, 0.999, 0.1, 0.9)
"""Means of the beliefs that a predictor can come to."""

REWARD = 1e6
"""Size of rewards for a rule that takes graded ones: beyond any threshold."""


def equal_counts_because(allocator: Allocator, prompts: int, *, rated: bool = False) -> str:
    """Return why batches of ``prompts`` prompts are split evenly; "" if outcomes or beliefs can make counts differ.

    Either nothing can make them differ, or nothing can before prompts come again: the predictor believes all alike that
    were never sampled. ``rated`` says that prompts have known success rates. A rule that is uniform by design, as
    ``Uniform`` is, has no reason. It takes milliseconds as a rule, and at most the time of 4,000 plans.

    >>> from apportion import HORA, VIP
    >>> equal_counts_because(HORA(rollouts_per_prompt=4), 64)
    'hora gives every prompt 4 rollouts, whatever their outcomes'
    >>> equal_counts_because(HORA(rollouts_per_prompt=8), 64)
    ''
    >>> equal_counts_because(VIP(rollouts_per_prompt=8), 64)
    'vip gives every prompt 8 rollouts until prompts come again, because nothing tells unseen ones apart'
    """
    return _reason_and_remedy(allocator, prompts, rated)[0]


def warn_of_equal_counts(allocator: Allocator, prompts: int, *, rated: bool = False) -> None:
    """Log why batches of ``prompts`` prompts are split evenly, if they are. Engines call it before they sample.

    Nothing is said of a user's rule that cannot plan for stand-ins, for example because it reads ``Prompt.data``.
    """
    try:
        reason, remedy = _reason_and_remedy(allocator, prompts, rated)
    except Exception:
        logger.debug("%s cannot plan for stand-ins", allocator.name, exc_info=True)
        return
    if reason:
        logger.warning("%s; %s", reason, remedy)


def _reason_and_remedy(allocator: Allocator, prompts: int, rated: bool) -> tuple[str, str]:
    """Return why counts are equal and what to do, or two empty texts."""
    check_object("allocator", allocator, "Allocator")
    if not allocator.adapts:
        return "", ""
    try:
        now, ever = (_counts(_endings(allocator, prompts, learned, rated)) for learned in (False, True))
    except _TooManyError:
        return "", ""
    if now is None:
        return "", ""
    each = f"{allocator.name} gives every prompt {' or '.join(map(str, np.unique(now)))} rollouts"
    if ever is None:
        return (
            f"{each} until prompts come again, because nothing tells unseen ones apart",
            "known success rates, or a predictor that reads texts, would tell them apart",
        )
    if prompts == 1:
        return f"{each}, because a batch has one prompt", "give a batch more prompts"
    return f"{each}, whatever their outcomes", "raise its budget or change its bounds, or use uniform"


class _TooManyError(Exception):
    """There are more plans to compare than ``MOST_PLANS``, or they take longer than ``MOST_SECONDS``."""


def _allowance() -> Iterator[int]:
    end = time.monotonic() + MOST_SECONDS
    return takewhile(lambda _: time.monotonic() < end, range(1, 1 + MOST_PLANS))


Ending = tuple[Counts, tuple[object, ...]]
"""The counts [P] of a finished batch, and which rollouts of each group are trained on."""


def _counts(endings: Iterator[Ending | None]) -> Counts | None:
    """Return the counts [P] of all ``endings`` if they are one split that is even, else None."""
    first = next(endings)
    if first is None or np.ptp(first[0]) > 1:
        return None
    for ending in endings:
        if ending is None or not np.array_equal(ending[0], first[0]) or ending[1] != first[1]:
            return None
    return first[0]


def _endings(allocator: Allocator, prompts: int, learned: bool, rated: bool) -> Iterator[Ending | None]:
    """Yield how each batch of stand-ins ends, for all outcomes; None for one that draws fresh prompts.

    ``learned`` lets beliefs, lengths and stored rollouts be what a run can make them.
    """
    plans = _allowance()
    size = 1 if allocator.separable else min(prompts, STAND_INS)
    if isinstance(allocator, BudgetedAllocator) and allocator.budget is not None:  # the stand-ins get their share of it
        share = -(-allocator.budget * size // prompts)
        allocator = copy.copy(allocator)
        object.__setattr__(allocator, "budget", share)
    stand_ins = [Prompt("", id=f"stand-in {q}") for q in range(size)]
    for first in sorted({-(-size // 2), 1, max(size - 1, 1)}, key=lambda first: abs(2 * first - size)):
        second = np.arange(size) >= first
        for rule, batch in _starts(allocator, stand_ins, second, learned, rated):
            yield from _played(rule, batch, second, plans, set())


def _starts(
    allocator: Allocator, stand_ins: list[Prompt], second: Mask, learned: bool, rated: bool
) -> Iterator[tuple[Allocator, Batch]]:
    """Yield the rule and its batch before the first rollout, once for each belief or memory that it can have."""
    if not isinstance(allocator, BudgetedAllocator):
        yield allocator, allocator.start(stand_ins)
        for right in product((True, False), repeat=2) if learned and allocator.state_dict() else ():
            taught = copy.deepcopy(allocator)
            batch, plans = taught.start(stand_ins), _allowance()
            while (plan := taught.plan(batch)) and not plan.fresh and next(plans, None) is not None:
                batch = batch.add(plan, _rollouts(taught, batch, plan.counts, plan.counts * np.where(second, *right)))
            taught.observe(batch)
            yield taught, taught.start(stand_ins)
        return
    predictor, lengths = allocator.predictor, allocator.lengths
    told = predictor.reads_texts or (rated and predictor.reads_rates)
    if isinstance(predictor, UniformPrior) or not (learned or told):
        beliefs = [predictor.predict(stand_ins)]
    else:
        beliefs = [Belief.from_mean(np.where(second, *means)) for means in product(MEANS, repeat=2)]
    for belief, factor in product(beliefs, (1.0, 2.0) if learned and lengths is not None else (1.0,)):
        costs = None if lengths is None else lengths.predict(stand_ins) * np.where(second, factor, 1.0)
        yield allocator, Batch.start(stand_ins, belief, costs)


def _played(
    allocator: Allocator, batch: Batch, second: Mask, plans: Iterator[int], known: set[bytes]
) -> Iterator[Ending | None]:
    """Yield how ``batch`` ends, for each number right of each kind of prompt in each round, the extremes first."""
    if (totals := np.concatenate([batch.asked, batch.successes]).tobytes()) in known:
        return
    known.add(totals)
    if next(plans, None) is None:
        raise _TooManyError
    plan = allocator.plan(batch)
    if plan.fresh:
        yield None
    elif not plan:
        yield batch.asked, _trained(allocator, batch)
    else:
        ends = allocator.final(batch, plan).all()  # then no outcome of this round changes a count
        most = [0 if ends else int(plan.counts[kind].max(initial=0)) for kind in (~second, second)]
        for right in product(*map(_from_the_extremes, most)):
            successes = np.minimum(np.where(second, right[1], right[0]), plan.counts)
            added = batch.add(plan, _rollouts(allocator, batch, plan.counts, successes))
            yield from _played(allocator, added, second, plans, known)


def _from_the_extremes(most: int) -> list[int]:
    """Return 0 to ``most``, from both ends to the middle.

    >>> _from_the_extremes(4)
    [4, 0, 3, 1, 2]
    """
    return sorted(range(most, -1, -1), key=lambda right: min(right, most - right))


def _rollouts(allocator: Allocator, batch: Batch, counts: Counts, successes: Counts) -> list[list[Rollout]]:
    """Return ``counts`` [P] rollouts that name their places, ``successes`` [P] of them right, with one answer."""
    graded = allocator.needs.labels and not allocator.needs.binary

    def rollout(start: int, place: int, correct: bool) -> Rollout:
        answer, reward = "right" if correct else f"wrong {place}", REWARD * (2 * correct - 1) if graded else None
        return Rollout(correct, answer, reward, (start + place, correct), tokens=100, score_norm=1.0)

    made = zip(batch.rollouts, counts.tolist(), successes.tolist(), strict=True)
    return [[rollout(len(own), place, place < right) for place in range(count)] for own, count, right in made]


def _trained(allocator: Allocator, batch: Batch) -> tuple[object, ...]:
    """Return the places of each group's rollouts, and which are trained on; () for rules that vote."""
    if not allocator.needs.labels:
        return ()
    return tuple(
        tuple(
            (rollout.completion[0] if rollout.step is None else -1, bool(keep))
            for rollout, keep in zip(g.rollouts, g.keep, strict=True)
        )
        for g in allocator.groups(batch)
    )
