"""What a replay cannot know: rollouts that were not recorded, drift within a window, and success rates of 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.allocators import Allocator
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.predictors import Predictor
from apportion.records.run_record import RunRecord
from apportion.replay.cells import Cells
from apportion.replay.population import OutcomePopulation
from apportion.selection import Selector, check_selector
from apportion.types import Floats, Needs

MOST_MISSING = 0.1
"""Largest share of rollouts missing from the pools with which a replay is shown."""

HARD, EASY = 0.25, 0.75


@dataclass(frozen=True)
class Missing:
    """Rollouts that a rule asked for and the pools did not have.

    Args:
        share: of the rollouts asked for.
        rollouts: their number, mean over seeds.
        prompts: distinct prompts whose pool ran dry.
        steps: share of batches with such a prompt.
        hard: share of the missing rollouts at prompts with a success rate below .25.
        easy: share of them at prompts with one above .75.
        mixed: mixed groups that the missing rollouts would have added, in expectation, as a share of those found.
    """

    share: float
    rollouts: float
    prompts: int
    steps: float
    hard: float
    easy: float
    mixed: float

    def __str__(self) -> str:
        middle = 1 - self.hard - self.easy
        return (
            f"{self.share:.1%} of its rollouts were not recorded, at {self.prompts} prompts and {self.steps:.0%} of "
            f"the batches: {self.hard:.0%} of them at hard prompts, {middle:.0%} at middling and {self.easy:.0%} at "
            f"easy ones. With them it would have about {self.mixed:.1%} more mixed groups"
        )


def missing(cells: Cells, population: OutcomePopulation) -> Missing | None:
    """Return the rollouts that the pools did not have; None if they had all of them."""
    got = cells.rule["rollouts"]
    short = cells.asked - got
    if not short.any():
        return None
    rate, dry = population.rate[cells.group], short > 0
    window = OutcomePopulation.expected(population.record, population.labels)
    wanted = window.mixed(cells.group[dry], cells.asked[dry])
    found = window.mixed(cells.group[dry], got[dry])
    return Missing(
        share=float(short.sum() / cells.asked.sum()),
        rollouts=float(short.sum() / cells.seeds),
        prompts=len(np.unique(cells.prompt[dry])),
        steps=len(np.unique(cells.seed[dry] * len(cells.step) + cells.batch[dry])) / (cells.seeds * len(cells.step)),
        hard=float(short[rate < HARD].sum() / short.sum()),
        easy=float(short[rate > EASY].sum() / short.sum()),
        mixed=float((wanted - found).sum() / max(cells.rule["mixed"].sum(), 1.0)),
    )


def check_missing(name: str, found: Missing | None) -> None:
    """Raise ValueError if so many rollouts are missing that the replay of the rule ``name`` would be guesswork."""
    if found is not None and found.share > MOST_MISSING:
        raise ValueError(
            f"the pools must hold {1 - MOST_MISSING:.0%} of the rollouts that {name} asks for, got "
            f"{1 - found.share:.0%}; lower the rollouts, widen the window, replay in expectation, or allow missing ones"
        )


def drift(record: RunRecord, visits: int) -> float:
    """Return how far the mean reward of a prompt moves within so many ``visits``: the root of the mean square.

    Sampling noise of the groups is subtracted. It is nan if no prompt has so many visits.
    """
    order = np.lexsort((record.visit, record.prompt))
    later, earlier = order[visits:], order[: max(0, len(order) - visits)]
    same = record.prompt[later] == record.prompt[earlier]
    with np.errstate(divide="ignore", invalid="ignore"):
        noise: Floats = record.variances / (record.trials - 1)
    squares = (record.shares[later] - record.shares[earlier]) ** 2 - noise[later] - noise[earlier]
    pairs = same & np.isfinite(squares)
    return float(np.sqrt(max(0.0, squares[pairs].mean()))) if pairs.any() else float("nan")


def check_recorded(name: str, rule: Allocator | Selector, record: RunRecord) -> None:
    """Raise ValueError if ``rule``, which is called ``name``, needs what the run did not record."""
    needs = rule.needs
    if isinstance(rule, Selector):
        check_selector(rule, Needs(), graded=not record.binary)
        if np.median(np.unique(record.prompt, return_counts=True)[1]) < 2:
            raise ValueError(
                f"most prompts must be visited twice to replay {name}, got one group of most: what it chooses again "
                "would give it the group that it has seen; replay a run of several epochs, or leave it out"
            )
    if needs.labels and np.isnan(record.reward).all():
        raise ValueError(f"rewards must be recorded to replay {name}, got none; replay rules without labels")
    if needs.binary and not record.binary:
        raise ValueError(
            f"rewards must be 0 or 1 to replay {name}, got graded ones; leave it out, or give it a predictor for them"
        )
    if not needs.labels and (record.answer < 0).all():
        raise ValueError(
            f"answers must be recorded to replay {name}, which votes on them, got none; name them by --column "
            "answer=COLUMN, or leave it out"
        )
    columns = {"score_norms": record.score_norm, "tokens": record.tokens}
    for need, column in columns.items():
        if getattr(needs, need) and np.isnan(column[~np.isnan(record.reward)]).any():
            remedy = (
                f'set {name}.predictor = "empirical_bayes"' if need == "score_norms" else "give a budget in rollouts"
            )
            raise ValueError(
                f"{need.replace('_', ' ')} of all rollouts must be recorded to replay {name}, got some without; "
                f"log them, {remedy}, or leave it out"
            )
    predictor = rule.predictor if isinstance(rule, BudgetedAllocator) else getattr(rule, "predictor", None)
    if isinstance(predictor, Predictor) and predictor.reads_texts and any(text is None for text in record.texts):
        raise ValueError(
            f"texts of prompts must be recorded to replay {name} with {predictor.name}, got some without; "
            "give it a predictor that reads none"
        )
