"""A whole run in memory, as columns: which prompts were visited when, and what each rollout was worth.

Ten million rollouts take about 250 MB. Texts of completions are not held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.records.keys import places_of
from apportion.types import TIE, Counts, Floats, Mask, Prompt

PER_GROUP = ("step", "prompt", "asked", "predicted", "written")
PER_ROLLOUT = ("reward", "tokens", "score_norm", "truncated", "answer", "kept")
"""Columns with one value per group, and columns with one value per rollout."""

UNKNOWN = {
    **dict.fromkeys(("predicted", "written", "tokens", "score_norm", "truncated"), np.nan),
    "answer": -1,
    "kept": True,
}
"""Columns that may be omitted, and the value that stands for nothing in each."""

NOT_GIVEN: Any = None


def ratio(above: Floats | Counts, below: Floats | Counts) -> Floats:
    """Return ``above`` / ``below``, elementwise, nan where ``below`` is 0."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord:
    """N groups of Q prompts, each the rollouts of one prompt at one step, and their R rollouts, group after group.

    Args:
        name: what the run is called in tables and pages.
        source: where it comes from, such as ``rollout log`` or ``TRL completions``.
        ids: the id of each prompt, [Q].
        texts: the text of each prompt, or None if it was not recorded, [Q].
        step: the step of each group, [N], never falling.
        prompt: the place in ``ids`` of the prompt of each group, [N].
        asked: the rollouts that were asked for, [N], at least those that arrived, which is the default.
        predicted: the mean of the belief before the step, [N], nan if there was none, as in a log in which it is
            0.5 throughout, of a rule that predicts nothing.
        written: when the step was finished, in seconds since 1970, [N], nan if unknown.
        first: [N + 1]; the rollouts of group g are ``first[g]`` to ``first[g + 1]``.
        reward: [R], nan for a rollout without one.
        tokens: completion tokens, [R], nan if unknown.
        score_norm: squared norm of the score function, [R], up to a common factor, nan if unknown.
        truncated: [R], 1 for a completion that was cut at a limit of tokens and 0 for others, nan if unknown.
        answer: [R], equal numbers for equal answers to the same prompt, -1 if unknown.
        kept: whether a rollout entered the loss, [R].
        ordered: whether the rollouts of a group are in the order in which they were drawn.
        visits: whether ``step`` counts the visits of each prompt, so that the batches of training are unknown.
        outcome: which of ``components`` says whether a rollout is right; None if their names tell.
        components: further rewards of each rollout, [R] each by their names: parts of the reward, or other verdicts.
        doubts: what may be read otherwise, a line each, with the figure under the other reading and how to choose it.

    Columns that may be unknown can be left out. Raises ValueError if the lengths or the order do not fit.
    """

    name: str
    source: str
    ids: Sequence[str]
    texts: Sequence[str | None]
    step: Counts
    prompt: Counts
    asked: Counts = NOT_GIVEN
    predicted: Floats = NOT_GIVEN
    written: Floats = NOT_GIVEN
    first: Counts
    reward: Floats
    tokens: Floats = NOT_GIVEN
    score_norm: Floats = NOT_GIVEN
    truncated: Floats = NOT_GIVEN
    answer: Counts = NOT_GIVEN
    kept: Mask = NOT_GIVEN
    ordered: bool = True
    visits: bool = False
    outcome: str | None = None
    components: Mapping[str, Floats] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.asked is None:
            object.__setattr__(self, "asked", np.diff(self.first))
        for name, unknown in UNKNOWN.items():
            if getattr(self, name) is None:
                size = len(self.reward if name in PER_ROLLOUT else self.step)
                object.__setattr__(self, name, np.broadcast_to(unknown, size))  # a broadcast array takes no memory
        lengths = {
            "texts": len(self.ids),
            **dict.fromkeys(PER_GROUP, len(self.step)),
            "first": len(self.step) + 1,
            **dict.fromkeys(PER_ROLLOUT, len(self.reward)),
        }
        for name, length in lengths.items():
            if len(getattr(self, name)) != length:
                raise ValueError(f"{name} must have {length} values, got {len(getattr(self, name))}; pass one for each")
        if len(self.step) and (np.diff(self.step) < 0).any():
            raise ValueError("step must never fall from one group to the next, got a falling one; sort the groups")
        if self.first[0] != 0 or self.first[-1] != len(self.reward) or (np.diff(self.first) < 0).any():
            raise ValueError(
                f"first must rise from 0 to the {len(self.reward)} rollouts, got {self.first[0]} to {self.first[-1]}"
            )

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The prompts [Q]. A prompt without a text has its id as text."""
        return [Prompt(id if text is None else text, id=id) for id, text in zip(self.ids, self.texts, strict=True)]

    @cached_property
    def trials(self) -> Counts:
        """Rollouts with a reward in each group, [N]."""
        return self.sums(~np.isnan(self.reward)).astype(np.int64)

    @cached_property
    def totals(self) -> Floats:
        """Sum of the rewards of each group, [N]. With rewards of 0 and 1 it counts the correct rollouts."""
        return self.sums(np.nan_to_num(self.reward))

    @cached_property
    def shares(self) -> Floats:
        """Mean reward of each group, [N], nan for a group without any."""
        return ratio(self.totals, self.trials)

    @cached_property
    def rates(self) -> Floats:
        """Mean reward of each prompt over the whole run, [Q], nan for a prompt without any."""
        return ratio(self.by_prompt(self.totals), self.by_prompt(self.trials))

    @cached_property
    def variances(self) -> Floats:
        """Population variance of the rewards of each group, [N], nan for a group without any; 0 in a dead group."""
        return ratio(self.sums(np.nan_to_num(self.reward - self.shares[self.group]) ** 2), self.trials)

    @cached_property
    def extremes(self) -> tuple[Floats, Floats]:
        """The least and the largest reward of each group, [N]; inf and -inf for a group without a reward."""
        least, largest = (np.full(len(self.step), none) for none in (np.inf, -np.inf))
        if len(given := np.flatnonzero(self.trials)):
            begins = self.first[given]
            least[given], largest[given] = np.fmin.reduceat(self.reward, begins), np.fmax.reduceat(self.reward, begins)
        return least, largest

    @cached_property
    def mixed(self) -> Mask:
        """Whether a group has two rewards that differ by more than rounding, [N]; see ``TIE``."""
        least, largest = self.extremes
        return np.asarray(largest - least > TIE * np.maximum(np.abs(least), np.abs(largest)))

    @cached_property
    def dead(self) -> Mask:
        """Whether a group has two rewards or more, and all are equal, [N]."""
        return np.asarray((self.trials >= 2) & ~self.mixed)

    @cached_property
    def binary(self) -> bool:
        """Whether all rewards are 0 or 1."""
        return bool(np.isin(self.reward[~np.isnan(self.reward)], (0, 1)).all())

    @cached_property
    def visit(self) -> Counts:
        """How many earlier groups each group's prompt has, [N]: 0 at its first visit."""
        return places_of(self.prompt)

    @property
    def group(self) -> Counts:
        """The index of each rollout's group, [R]."""
        return np.repeat(np.arange(len(self.step)), np.diff(self.first))

    def sums(self, values: Floats | Mask) -> Floats:
        """Return the sums of ``values`` [R] over each group, [N]."""
        total = np.r_[0.0, np.cumsum(values, dtype=np.float64)]
        return np.asarray(total[self.first[1:]] - total[self.first[:-1]])

    def by_prompt(self, values: ArrayLike | None = None) -> NDArray[Any]:
        """Return the sums of ``values`` [N] over the groups of each prompt, [Q]; without values their number."""
        return np.bincount(self.prompt, values, len(self.ids))

    def of_groups(self, chosen: Counts | Mask) -> RunRecord:
        """Return the record of some groups, given as increasing indices or a mask [N]. All prompts stay."""
        places = np.arange(len(self.step))[chosen]
        sizes = np.diff(self.first)[places]
        first = np.r_[0, np.cumsum(sizes)]
        rows = np.repeat(self.first[places] - first[:-1], sizes) + np.arange(first[-1])
        cut = {name: getattr(self, name)[places] for name in PER_GROUP}
        cut |= {name: getattr(self, name)[rows] for name in PER_ROLLOUT}
        return replace(
            self, first=first, components={name: values[rows] for name, values in self.components.items()}, **cut
        )
