"""GRESO: shuffled epochs in which a prompt whose latest groups were dead is probably skipped.

Reference: H. Zheng et al., "Act Only When It Pays: Efficient Reinforcement Learning for LLM Reasoning via Selective
Rollouts", arXiv 2506.02177 (2025). A prompt that was easy, or hard, at its latest c visits is kept with probability
max(p^c, least). p is one number for easy prompts and one for hard ones. Each moves by ``move`` a step: down while the
share of such groups in the batch is above its target, and up while it is below.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from apportion.predictors import Predictor
from apportion.predictors.saved import SavedValues
from apportion.selection.base import Column
from apportion.selection.shuffled import ShuffledEpochs
from apportion.types import Counts, Floats, Mask, Prompt

EASY, HARD = 0, 1
LOWEST, HIGHEST = 0.05, 0.95
EPOCHS = 10
"""Turns of each prompt within one choice. After them no prompt is skipped, so that a choice always ends."""


@dataclass(kw_only=True)
class GRESO(ShuffledEpochs):
    """Takes the prompts in shuffled epochs, and skips one with probability 1 - max(p^c, ``least``).

    It explores because every prompt is kept with a probability of at least ``least``.

    Args:
        easy: the share of right rollouts in a group, or mean reward without verdicts, from which on it is easy.
        hard: the share of right rollouts in a group, or mean reward without verdicts, up to which it is hard.
        start: p at the beginning.
        move: how much p changes in a step. It stays between .05 and .95.
        target: share of easy and hard groups that is wanted in a batch. A third of it is for easy ones.
        least: the least probability of keeping a prompt.
        importance_weights: whether each chosen prompt has the weight mean / own probability of keeping in the loss. The
            expected gradient is then that of the mean over all prompts.

    >>> selector = GRESO()
    >>> selector.prepare([Prompt("a"), Prompt("b")])
    >>> sorted(selector.choose(2))
    [0, 1]
    """

    easy: float = 0.98
    hard: float = 0.11
    start: float = 0.5
    move: float = 0.01
    target: float = 0.25
    least: float = 0.01
    importance_weights: bool = False

    name: ClassVar[str] = "greso"
    columns: ClassVar[Mapping[str, Column]] = {
        "_visits": Column("visits", np.zeros(2, np.int64)),
        "_probability": Column("kept", np.float64(1)),
    }
    _visits: Counts = field(init=False, repr=False, compare=False)
    _p: Floats = field(default_factory=lambda: np.zeros(2), init=False, repr=False, compare=False)
    _keeping: Floats = field(default_factory=lambda: np.zeros(0), init=False, repr=False, compare=False)
    _turns: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -math.inf < self.hard < self.easy < math.inf:
            raise ValueError(
                f"hard must be below easy, both finite, got {self.hard} and {self.easy}; they are mean rewards"
            )
        if not LOWEST <= self.start <= HIGHEST:
            raise ValueError(f"start must be between {LOWEST} and {HIGHEST}, got {self.start}; .5 is the paper's")
        for key in ("move", "target", "least"):
            value = getattr(self, key)
            if not 0 <= value <= 1 or (key == "least" and not value):
                raise ValueError(f"{key} must be between 0 and 1, got {value}; leave it out for the paper's")

    def prepare(self, prompts: Sequence[Prompt], seed: int = 0, predictor: Predictor | None = None) -> None:
        super().prepare(prompts, seed, predictor)
        self._p = np.full(2, self.start)

    def metrics(self) -> dict[str, float]:
        found = super().metrics()
        return found | {"keep_easy": float(self._p[EASY]), "keep_hard": float(self._p[HARD])} if found else found

    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        self._turns, self._keeping = 0, self._probabilities()
        chosen = super()._choose(allowed, count, generator)
        self._probability[chosen] = self._keeping[chosen] / self._keeping[allowed].mean()
        return chosen

    def _accepts(self, place: int, allowed: Mask, generator: Generator) -> bool:
        self._turns += 1
        kept = bool(generator.random() < self._keeping[place] or self._turns > EPOCHS * len(self._ids))
        return kept and super()._accepts(place, allowed, generator)

    def _probabilities(self) -> Floats:
        """Return the probability [Q] of keeping each prompt when its turn comes."""
        found: Floats = np.maximum(self._p[:, None] ** self._visits, self.least).min(axis=0)
        return found

    def _learn(self, places: Counts, means: Floats) -> None:
        found = np.stack([means >= self.easy, means <= self.hard])
        self._visits[:, places] = np.where(found, self._visits[:, places] + 1, 0)
        wanted = np.array([self.target / 3, self.target * 2 / 3])
        self._p = np.clip(self._p + np.where(found.mean(axis=1) > wanted, -self.move, self.move), LOWEST, HIGHEST)

    def _memory(self) -> dict[str, Any]:
        return super()._memory() | {"p": self._p}

    def _restore_own(self, saved: SavedValues) -> None:
        p = saved.array("p", (2,), low=LOWEST, high=HIGHEST)
        super()._restore_own(saved)
        self._p = p
