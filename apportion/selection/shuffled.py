"""Shuffled epochs: every prompt once in each epoch, in random order. The usual way, and the control of every rule."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from apportion.predictors import Predictor
from apportion.predictors.saved import SavedValues
from apportion.selection.base import Selector
from apportion.types import Counts, Mask, Prompt


@dataclass(kw_only=True)
class ShuffledEpochs(Selector):
    """Takes the prompts in a new random order in each epoch. A prompt that is held by the batch loses its turn.

    Every prompt has the same weight in the objective, so there is nothing to undo.

    >>> selector = ShuffledEpochs()
    >>> selector.prepare([Prompt("a"), Prompt("b"), Prompt("c")])
    >>> sorted(selector.choose(2) + selector.choose(1))
    [0, 1, 2]
    """

    name: ClassVar[str] = "shuffled"
    _drawn: int = field(default=0, init=False, repr=False, compare=False)

    def prepare(self, prompts: Sequence[Prompt], seed: int = 0, predictor: Predictor | None = None) -> None:
        super().prepare(prompts, seed, predictor)
        self._drawn = 0

    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        allowed, chosen = allowed.copy(), list[int]()
        while len(chosen) < count:
            place = self._next_place()
            if self._accepts(place, allowed, generator):
                chosen.append(place)
                allowed[place] = False
        return np.array(chosen, np.int64)

    def _next_place(self) -> int:
        """Return the next index in the order of the epochs."""
        epoch, turn = divmod(self._drawn, len(self._ids))
        self._drawn += 1
        return int(order_of_epoch(self._seed, epoch, len(self._ids))[turn])

    def _accepts(self, place: int, allowed: Mask, generator: Generator) -> bool:
        """Return whether the prompt whose turn it is enters the batch."""
        return bool(allowed[place])

    def _memory(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def _restore_own(self, saved: SavedValues) -> None:
        self._drawn = saved.count("drawn")


@lru_cache(maxsize=4)
def order_of_epoch(seed: int, epoch: int, size: int) -> Counts:
    """Return the order [size] of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(size)
