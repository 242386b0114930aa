"""The results of a replay: the run, the rules that split rollouts, and the rules that choose prompts.

Each is compared with its control by a ratio or a difference, with an interval over prompts and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.replay.allocating import Observe
from apportion.replay.cells import Cells
from apportion.replay.choosing import Choices, Outcome
from apportion.replay.intervals import Spanned, ratio_over_prompts, ratios_over_prompts
from apportion.replay.limits import Missing
from apportion.replay.population import Source
from apportion.types import Counts, Floats, Mask

COMPARED = ("mixed", "variance", "signal", "hits", "dead", "tokens")
"""The measures of ``AllocatorReplay.ratios``."""

SAME_TOTAL = 0.01
"""Relative difference below which two totals count as equal."""

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class AllocatorReplay:
    """The result of one rule along the run, compared with an even split of the same rollouts.

    Args:
        name: what the rule is called.
        source: "recorded" for the run itself, else where its outcomes come from.
        cells: its measures for each prompt of each batch; ``cells.by_step`` has those of the steps.
        budget: the rollouts per prompt that it was given.
        groups: the groups of the run, each of which the budget is for.
        missing: rollouts that the pools did not have; None if they had everything.
        warnings: what the rule logged, such as batches that it could not fill.
        closed: whether its measures are expectations given its counts, and not what drawn rollouts showed.
    """

    name: str
    source: Source | Literal["recorded"]
    cells: Cells
    budget: int
    groups: int
    missing: Missing | None = None
    warnings: int = 0
    closed: bool = False

    @cached_property
    def ratios(self) -> Mapping[str, Spanned]:
        """The rule's sum of each measure divided by that of the even split. Unknown measures are left out."""
        cells = self.cells
        known = [name for name in COMPARED if not np.isnan([cells.rule[name], cells.even[name]]).any()]
        return {name: _ratio(cells.by_prompt(name), cells.by_prompt(name, even=True)) for name in known}

    @property
    def per_prompt(self) -> float:
        """Rollouts per prompt of a batch."""
        return self.cells.total("rollouts") * self.cells.seeds / max(1, len(self.cells.batch))

    @property
    def of_budget(self) -> float:
        """The rule's rollouts divided by the budget of all groups of the run."""
        return self.cells.total("rollouts") / (self.budget * self.groups)

    @property
    def same_total(self) -> bool:
        """Whether the rule took as many rollouts as the budget has."""
        return abs(self.of_budget - 1) <= SAME_TOTAL


@dataclass(frozen=True, eq=False)
class SelectorReplay:
    """The result of one selection rule along the run, compared with shuffled epochs.

    Args:
        name: what the rule is called.
        choices: what it chose, for each seed.
        mixed: share of the chosen groups with different rewards, by seed and step, [S, T].
        hits: share of the chosen groups with a correct rollout, [S, T]; nan if rewards are not 0 or 1.
        rollouts: rollouts of the chosen groups, [S, T].
        tokens: their tokens, [S, T], nan if unknown.
        dead: rollouts in groups of equal rewards, [S, T].
        coverage: distinct prompts with a group of different rewards, mean over seeds.
        above_shuffled: mean of ``mixed`` less that of shuffled epochs.
    """

    name: str
    choices: tuple[Choices, ...]
    mixed: Floats
    hits: Floats
    rollouts: Floats
    tokens: Floats
    dead: Floats
    coverage: float
    above_shuffled: Spanned

    @classmethod
    def of(cls, name: str, choices: tuple[Choices, ...], record: RunRecord, control: SelectorReplay | None) -> Self:
        """Return the result of ``choices`` in ``record`` beside the ``control``, or beside themselves if it is None."""
        shown = np.stack([each.shown for each in choices])
        given = shown >= 0
        found = [np.unique(own[own >= 0]) for own in shown]
        mixed = np.stack([each.mixed for each in choices])
        epoch = max(1, round(choices[0].prompts / shown.shape[2]))

        def per_step(values: Floats | Counts | Mask) -> Floats:
            return np.asarray(np.where(given, values[shown], 0.0).sum(axis=2))

        return cls(
            name=name,
            choices=choices,
            mixed=mixed,
            hits=per_step(record.totals > 0) / given.sum(axis=2) if record.binary else np.full(mixed.shape, np.nan),
            rollouts=per_step(record.trials),
            tokens=per_step(record.sums(record.tokens)),
            dead=per_step(np.where(record.mixed, 0, record.trials)),
            coverage=float(np.mean([len(np.unique(record.prompt[own[record.mixed[own]]])) for own in found])),
            above_shuffled=_difference(mixed, mixed if control is None else control.mixed, epoch),
        )


@dataclass(frozen=True, eq=False)
class Replay:
    """What a recorded run would have been under other rules.

    Args:
        name: of the run.
        run: the run itself, as recorded.
        allocators: the rules that split rollouts, in the order given.
        selectors: the rules that choose prompts, in the order given, after shuffled epochs, their control.
        observe: what the rules learned from.
        outcome: which recorded group a chosen prompt got.
        window: visits before and after each group from which outcomes may come too, None for the defaults.
        seeds: the number of seeds.
        certain: share of groups whose window in expectation has equal rewards, so that its success rate is 0 or 1.
        certain_size: median number of rollouts in such a window.
        drift: how far success rates move within the window that was used; 0 without one.
        dropped: why each rule was left out that cannot read the run.
        doubts: what may have been read otherwise.
    """

    name: str
    run: AllocatorReplay
    allocators: tuple[AllocatorReplay, ...]
    selectors: tuple[SelectorReplay, ...]
    observe: Observe
    outcome: Outcome
    window: int | None
    seeds: int
    certain: float
    certain_size: int
    drift: float
    dropped: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def _ratio(rule: Floats, even: Floats) -> Spanned:
    """Return the sum of ``rule`` divided by that of ``even``, both [S, Q] by seed and prompt, with a paired interval.

    It is a bootstrap over prompts, and over seeds if there are several. The counts stay as they are: a prompt's share
    of a batch is not planned again for the resampled batch. A sum of 0 or infinity to compare with gives nan.
    """
    seeds, generator = len(rule), np.random.default_rng(0)

    def ratio(sums: Floats) -> Floats:
        by_seed = sums.reshape(-1, 2, seeds)
        if sums.ndim > 1:  # several resamples at once
            by_seed = by_seed * generator.multinomial(seeds, np.full(seeds, 1 / seeds), len(sums))[:, None]
        above, below = by_seed.sum(axis=2).T
        found = above / np.where((below > 0) & (below < np.inf), below, np.nan)
        return found if sums.ndim > 1 else found[0]

    return ratios_over_prompts(np.concatenate([rule, even]).T, ratio, resamples=RESAMPLES)


def _difference(found: Floats, control: Floats, length: int) -> Spanned:
    """Return the mean of ``found`` [S, T] minus that of ``control`` [S, T], by seed and step, with its interval.

    Blocks of ``length`` steps are resampled, in pairs and of all seeds, because neighbouring steps are alike.
    """
    apart = found - control
    cut = apart.shape[1] // length * length
    blocks = apart[:, :cut].reshape(apart.shape[0], -1, length) if cut else apart[:, None]
    sums, sizes = np.nansum(blocks, axis=2).ravel(), np.isfinite(blocks).sum(axis=2).ravel()
    return ratio_over_prompts(sums, sizes, resamples=RESAMPLES)._replace(value=float(np.nanmean(apart)))
